"""A fork of the prestarted `lakebroker` is a process like any other: status, streams, signals, environment, folder, end."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakebroker_testing import prestarted as subject
from lakebroker_testing.prestarted import ROOT, Forked, run, start
from tests.support.waiting import LIMIT_S, wait_until


def name_server(folder: Path, **settings: bool) -> Forked:
    given = (
        "listenPort=0",
        "bindAddress=127.0.0.1",
        f"kvConfigPath={folder}/kv.json",
        f"configStorePath={folder}/n",
    )
    words = [part for each in given for part in ("--set", each)]
    out = folder / "out"
    with out.open("wb") as stream:
        process = start("namesrv", *words, stdout=stream, stderr=subprocess.STDOUT, **settings)  # type: ignore[arg-type]
    wait_until(lambda: "success" in out.read_text(), lambda: out.read_text())
    assert isinstance(process, Forked)
    return process


def test_status_and_streams_come_back() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0], done.stderr) == (0, "lakebroker", "")
    refused = run("no-such-command")
    assert refused.returncode == 2
    assert "no-such-command" in refused.stderr
    with pytest.raises(subprocess.CalledProcessError):
        run("no-such-command", check=True)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_it_takes_signals(tmp_path: Path, number: int, status: int) -> None:
    process = name_server(tmp_path)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.send_signal(number)
    assert process.wait(LIMIT_S) == process.returncode == status
    process.kill()  # nothing is sent to whoever has the id now


def test_a_time_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    process = name_server(tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(-1)
    process.kill()
    assert process.wait(LIMIT_S) == process.wait(-1) == -signal.SIGKILL


def test_all_threads_that_wait_for_it_have_its_status(tmp_path: Path) -> None:
    process = name_server(tmp_path)
    wait = threading.Barrier(9)

    def status() -> int:
        wait.wait(LIMIT_S)
        return process.wait(LIMIT_S)

    with ThreadPoolExecutor(8) as threads:
        told = [threads.submit(status) for _ in range(8)]
        wait.wait(LIMIT_S)
        process.terminate()
        assert [each.result(LIMIT_S) for each in told] == [0] * 8


def test_too_large_a_request_is_refused_and_others_run_on(tmp_path: Path) -> None:
    other = name_server(tmp_path)
    with pytest.raises(OSError, match="too long") as refused:
        run("--version", env={**os.environ, "LARGE": "x" * (1 << 20)})
    assert refused.value.errno == errno.E2BIG
    assert run("--version").returncode == 0
    assert other.poll() is None
    other.kill()
    assert other.wait(LIMIT_S) == -signal.SIGKILL


def test_folder_environment_and_input_are_the_callers(tmp_path: Path) -> None:
    (tmp_path / "messages").mkdir()
    missing = run("sql", "--lake", "messages", "SELECT 1", cwd=tmp_path)
    assert missing.returncode == 1
    assert "messages" in missing.stderr
    given = {**os.environ, "LAKEBROKER_GATEWAY": "no address"}
    assert "no address" in run("topic", "list", env=given).stderr


def test_a_session_of_its_own(tmp_path: Path) -> None:
    process = name_server(tmp_path, start_new_session=True)
    assert os.getsid(process.pid) == process.pid
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_forks_end_with_the_process_that_asked_for_them(tmp_path: Path) -> None:
    script = f"""
import os, pathlib, sys
from lakebroker_testing.prestarted import prestarted
from lakebroker_testing.gateway import NameServer
with prestarted():
    server = NameServer(pathlib.Path({str(tmp_path)!r}))
    server.start()
    print(server.process.pid, flush=True)
    os.kill(os.getpid(), 9)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    left = int(done.stdout)
    wait_until(lambda: not Path(f"/proc/{left}").exists(), "the end of the fork")


LEFT_ALONE = """
import json, signal, socket
from lakebroker_testing.prestarted import _serve

ours, theirs = socket.socketpair()
request = json.dumps({"words": [], "cwd": "/", "env": {}, "new_session": False, "limits": []}).encode()

def ask(sent):
    socket.send_fds(ours, [len(request).to_bytes(4, "big")], [0, 1, 2, theirs.fileno()])
    ours.sendall(sent)

def answer():
    theirs.sendall(b"1234")

<before>
ours.close()
if _serve(theirs) is not None:
    signal.pause()  # a fork: it has the streams open until the server ends it
print("ended")
"""


@pytest.mark.parametrize("before", ["answer()", "ask(request[:-1])", "ask(request)"])
def test_the_server_ends_in_silence_with_its_forks_when_nobody_hears_it(before: str) -> None:
    script = LEFT_ALONE.replace("<before>", before)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def test_without_it_a_fresh_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_server", None)
    done = run("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "lakebroker")


ENDS = """
import atexit, sys, threading
from lakebroker_testing.prestarted import QuickEnd

class Kept:
    def __del__(self):
        print("cleared away")

end, kept = QuickEnd(), Kept()
atexit.register(print, "registered")

def command():
    threading.Thread(target=print, args=("thread",)).start()
    sys.exit({status})

end.run(command)
"""


def ended(status: str, shell: str = "exec") -> subprocess.CompletedProcess[str]:
    words = ["bash", "-c", f'{shell} "$@"', "bash", sys.executable, "-c", ENDS.format(status=status)]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(words, cwd=ROOT, env=buffered, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize(("status", "number"), [("3", 3), ("", 0), ("-1", 255), ("True", 1)])
def test_it_ends_with_its_status_behind_its_threads_and_what_is_registered(status: str, number: int) -> None:
    done = ended(status)
    assert (done.returncode, done.stdout, done.stderr) == (number, "thread\nregistered\n", "")


def test_it_ends_as_python_does_with_a_text_and_where_its_output_cannot_be_written() -> None:
    said = ended("'why'")
    assert (said.returncode, said.stderr) == (1, "why\n")
    full = ended("0", "exec >/dev/full; exec")
    assert full.returncode == 120
    assert "No space left on device" in full.stderr
