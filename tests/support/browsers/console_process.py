"""`lakebroker console` as a process on a free port, ended by its id."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.programs import until_ready
from tests.support.waiting import LIMIT_S

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
        ready = until_ready(
            "the console", self.process, self.log, lambda: _READY.search(self.log.read_text())
        )
        self.url = ready[1]

    def __enter__(self) -> ConsoleProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """SIGTERM; its status."""
        self.process.terminate()
        return self.process.wait(LIMIT_S)
