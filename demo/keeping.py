"""`make demo KEEP=1`: gateway and reput go on, with a little traffic and a page to look at, until ctrl-C."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lakebroker_testing.gateway import ROOT, Gateway, Reput, command
from lakebroker_testing.ports import is_open
from lakebroker_testing.programs import ProcessError, until_ready
from structured_streaming.signal_handlers import handled_by

APART = (sys.executable, "-c", "import os, sys; os.setsid(); os.execvp(sys.argv[1], sys.argv[1:])")
"""Goes before a command whose process a terminal's ctrl-C does not reach: it is ended in its turn."""
PORT = 8090
"""Of the console, where it can be had."""
_PAGE = re.compile(r" is at (http://\S+/)")
_STOP_S = 15.0


class Console:
    """`lakebroker console` over a gateway and a lake, in a process of its own."""

    def __init__(self, gateway: str, lake: Path, log: Path) -> None:
        self._asked = ["console", "--gateway", gateway, "--lake", str(lake), "--port"]
        self._log = log
        self.page = ""

    def __enter__(self) -> Console:
        """Returns when the page is there. Raises ProcessError."""
        try:
            self._start(PORT)
        except ProcessError:
            if not is_open("127.0.0.1", PORT):
                raise
            self._start(0)  # the port is somebody's: of another demo, perhaps
        return self

    def _start(self, port: int) -> None:
        with self._log.open("wb") as out:
            self._process = subprocess.Popen(
                [*APART, *command(*self._asked, str(port))],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=ROOT,
            )
        said = until_ready(
            "the console", self._process, self._log, lambda: _PAGE.search(self._log.read_text())
        )
        self.page = said[1]

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
