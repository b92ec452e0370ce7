"""`make demo KEEP=1`: its answers are right, it goes on with a page to look at, and ctrl-C leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT
from tests.support.brokers.scraped import Numbers, scraped
from tests.support.waiting import wait_until

PATIENCE_S = 1200
STORED = "rocketmq_messages_in_total"

pytestmark = pytest.mark.timeout(3000)


@contextmanager
def demo(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Leads a process group, as a terminal's foreground job does; if it still runs at the end, it ends what it started, or is killed
    with it."""
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo.run", "--output", str(folder / "output"), *arguments],
            stdout=said,
            stderr=said,
            cwd=ROOT,
            process_group=0,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise


def once(process: subprocess.Popen[bytes], folder: Path, there: Callable[[str], object]) -> str:
    """What the demo said, once it is so."""

    def said() -> str:
        return (folder / "said").read_text()

    wait_until(lambda: there(said()) or process.poll() is not None, lambda: said()[-3000:], PATIENCE_S)
    assert process.poll() is None, said()[-3000:]
    return said()


def running_in(folder: Path) -> list[str]:
    """Commands of processes that have the folder among their arguments."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if str(folder) in command:
                found.append(command)
    return found


def orders(numbers: Numbers) -> float:
    return sum(
        value for (name, labels), value in numbers.items() if name == STORED and ("topic", "orders") in labels
    )


def assert_no_second_one(folder: Path, first: subprocess.Popen[bytes]) -> None:
    """In the same folder, which the first one keeps."""
    output = folder / "output"
    files = {each.name for each in output.iterdir()}
    second = subprocess.run(
        [sys.executable, "-m", "demo.run", "--output", str(output)], capture_output=True, text=True, cwd=ROOT
    )
    assert second.returncode == 1
    assert f"a demo is running in {output} (process {first.pid})" in second.stderr
    assert {each.name for each in output.iterdir()} == files


def test_it_goes_on_until_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    with demo(tmp_path, "--keep", "--rounds", "6") as process:
        said = once(process, tmp_path, lambda said: re.search(r"metrics for Prometheus: \S+\n", said))
        assert "Wrong answer" not in said
        assert "Go on exploring" in said
        (metrics,) = re.findall(r"metrics for Prometheus: (\S+)", said)
        (page,) = re.findall(r"The (?:console|page): (\S+)", said)
        with urllib.request.urlopen(page, timeout=PATIENCE_S) as answer:
            assert b"<title>" in answer.read()
        before = orders(scraped(metrics))
        assert before >= 6 * 24
        once(process, tmp_path, lambda _: orders(scraped(metrics)) > before)
        assert_no_second_one(tmp_path, process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
    assert (tmp_path / "said").read_text().endswith("all have ended\n")
    assert (tmp_path / "output" / "throughput-and-lag.png").read_bytes().startswith(b"\x89PNG")
    assert running_in(tmp_path) == []


def test_it_can_be_stopped_before_it_is_done(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        once(process, tmp_path, lambda _: (tmp_path / "output" / "reput.log").exists())
        process.terminate()
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
    assert (tmp_path / "said").read_text().endswith("stopped: what ran has ended\n")
    assert running_in(tmp_path) == []


def test_too_few_rounds_are_refused(tmp_path: Path) -> None:
    with demo(tmp_path, "--rounds", "5") as process:
        assert process.wait(PATIENCE_S) == 2
    assert "--rounds: invalid choice: 5" in (tmp_path / "said").read_text()
    assert not (tmp_path / "output").exists()
