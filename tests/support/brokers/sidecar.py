"""A sidecar's process on a free port, of the loopback interface or of a host of its own, ended by its id."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lakebroker_testing.gateway import STOP_S
from lakebroker_testing.prestarted import ROOT, Process, command, start
from lakebroker_testing.programs import until_ready
from tests.support.lakes.streamed import StreamedLake

_BOOT = re.compile(r"serves log (\w+), from (\d+) on, at [\d.]+:(\d+)")


class Sidecar:
    """`lakebroker sidecar` over the store in `root`; what it says goes to files in `folder`.

    `wrapper` goes before the command, such as one that enters a namespace.
    """

    def __init__(
        self,
        folder: Path,
        root: Path,
        *arguments: str,
        broker: str = "broker-a",
        host: str = "127.0.0.1",
        wrapper: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log, self._out = folder / "sidecar.log", folder / "sidecar.out"
        self.state = folder / "state"
        named = [f"--broker={broker}"] if broker else []
        given = [f"--store={root}", f"--state={self.state}", "--port=0", *named, *arguments]
        self._host = host
        self._words = ["sidecar", "--set", f"grpcBindAddress={host}", *given]
        self._wrapper = wrapper
        self.process: Process | None = None
        self.log_id, self.port = "", 0

    def __enter__(self) -> Sidecar:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    def start(self) -> None:
        """Returns when it serves. Raises ProcessError with what it said."""
        with self.log.open("ab") as log, self._out.open("wb") as out:
            if self._wrapper:
                words = [*self._wrapper, *command(*self._words)]
                self.process = subprocess.Popen(words, cwd=ROOT, stdout=out, stderr=log)
            else:
                self.process = start(*self._words, stdout=out, stderr=log)
        found = until_ready(
            "the sidecar", self.process, self.log, lambda: _BOOT.search(self._out.read_text())
        )
        self.log_id, self.port = found[1], int(found[3])

    def filling(self, lake: Path) -> StreamedLake:
        """A lake that is filled with what it serves, in small parts, also where a part is gone."""
        return StreamedLake(lake, brokers=self.address, partitionBytes="50000", onGap="continue")

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM; the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
