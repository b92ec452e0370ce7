"""A signal while the command's modules are loaded ends it as a signal does, and nothing is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import LIMIT_S

SENDING = """
import _signal as signal, os, sys
from importlib.abc import MetaPathFinder
class Finder(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
sys.argv = ["lakebroker", "gateway", "--store", "store"]
from broker_gateway.cli.entry import run
run()
"""


@pytest.mark.parametrize("module", ["signal", "structured_streaming", "typer", "broker_gateway.app.startup"])
def test_ctrl_c_while_modules_are_loaded(tmp_path: Path, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SENDING.format(module=module, number="signal.SIGINT")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_first_process_of_a_container_too(tmp_path: Path, number: signal.Signals) -> None:
    """To which the kernel gives no signal whose action is the default."""
    done = subprocess.run(
        [
            "unshare",
            "--map-root-user",
            "--pid",
            "--fork",
            sys.executable,
            "-c",
            SENDING.format(module="typer", number=int(number)),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + number, "", "")


def test_a_signal_that_is_ignored_stays_so() -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + SENDING.format(
        module="typer", number="signal.SIGINT"
    )
    done = subprocess.run(
        [sys.executable, "-c", code.replace('"gateway", "--store", "store"', '"--version"')],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


HOSTED = """
import os, signal, sys, threading
os.environ["PYSPARK_GATEWAY_PORT"] = "1"
from broker_gateway.cli.entry import run
handler = signal.getsignal(signal.SIGINT)
for arguments, on in (("--version", True), ("--version", False), ("--nonsense", True), ("sql", False)):
    sys.argv = ["lakebroker", arguments]
    if arguments == "sql":
        sys.argv += ["--lake", "./nowhere", "--engine", "perl"]
    def call():
        try:
            run()
            print("returned")
        except BaseException as error:
            print(type(error).__name__, error)
    if on:
        call()
    else:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert signal.getsignal(signal.SIGINT) is handler
print("alive")
"""


def test_beside_a_session_that_is_there_the_process_goes_on_and_failures_are_exceptions() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOSTED], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    shown = [line for line in done.stdout.splitlines() if not line.startswith("lakebroker ")]
    assert (done.returncode, shown) == (
        0,
        [
            "returned",
            "returned",
            "CommandError lakebroker --nonsense failed with status 2: No such option: --nonsense",
            "CommandError lakebroker sql failed with status 2: --engine perl: give duckdb or spark",
            "alive",
        ],
    ), done.stderr
    assert "No such option: --nonsense" in done.stderr
