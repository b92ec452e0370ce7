"""`lakebroker console` as a process on a free port, ended by its id."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

from lakebroker_testing.gateway import ROOT, START_S, ProcessError, command

_READY = re.compile(r" is at (http://\S+/)")


class ConsoleProcess:
    """`url` ends in a slash. It runs in `cwd`, from which a lake's relative path is."""

    def __init__(self, folder: Path, name: str, *arguments: str, cwd: Path = ROOT) -> None:
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command("console", "--port", "0", "--interval", "0.5s", *arguments),
                stdout=out,
                stderr=out,
                cwd=cwd,
            )
        self.url = self._ready()

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """SIGTERM; its status."""
        self.process.terminate()
        return self.process.wait(60)

    def _ready(self) -> str:
        deadline = time.monotonic() + START_S
        while True:
            found = _READY.search(self.log.read_text())
            if found is not None:
                return found[1]
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                self.process.wait()
                raise ProcessError(f"the console did not start: {self.log.read_text()[-3000:]}")
            time.sleep(0.05)
