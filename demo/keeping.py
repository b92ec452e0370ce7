"""`make demo KEEP=1`: gateway and reput go on, with a little traffic and a page to look at, until ctrl-C."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakebroker_testing.gateway import ROOT, Gateway, ProcessError, Reput, command
from structured_streaming.signal_handlers import handled_by

APART = (sys.executable, "-c", "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])")
"""Goes before a command whose process a terminal's ctrl-C does not reach: it is ended in its turn."""
PORT = 8090
"""Of the console, where it is free."""
_START_S = 60.0
_STOP_S = 15.0


class Console:
    """`lakebroker console` over a gateway and a lake, in a process of its own."""

    def __init__(self, gateway: str, lake: Path, log: Path) -> None:
        self._log = log
        port = _free_port()
        self.page = f"http://127.0.0.1:{port}/"
        asked = ["console", "--gateway", gateway, "--lake", str(lake), "--port", str(port)]
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [*APART, *command(*asked)], stdout=out, stderr=out, stdin=subprocess.DEVNULL, cwd=ROOT
            )

    def __enter__(self) -> Console:
        """Returns when the page is there. Raises ProcessError."""
        until = time.monotonic() + _START_S
        while not _answers(self.page):
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise ProcessError(f"the console did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()

    def ended(self) -> bool:
        return self._process.poll() is not None


def look_on(page: str) -> None:
    """Opens the page where there is a desktop to open it on."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(page)


def until_stopped(gateway: Gateway, reput: Reput, console: Console | None, stopped: threading.Event) -> str:
    """Waits for `stopped`, or for one of the processes to end by itself; says which did, "" when none."""
    while not stopped.wait(0.5):
        if gateway.process is None or gateway.process.poll() is not None:
            return f"the gateway ended by itself: {gateway.log.read_text()[-2000:]}"
        if reput.process.poll() is not None:
            return f"the reput ended by itself: {reput.log.read_text()[-2000:]}"
        if console is not None and console.ended():
            return "the console ended by itself"
    return ""


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set within the block, in place of what they did."""
    stopped = threading.Event()
    with handled_by(lambda *_: stopped.set()):
        yield stopped


def _answers(page: str) -> bool:
    try:
        with urllib.request.urlopen(page, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True  # it asks for something, but it is there
    except OSError:
        return False


def _free_port() -> int:
    """`PORT`, or any other where that is taken."""
    for port in (PORT, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ProcessError("no free port on 127.0.0.1")
