"""RocketMQ's own `mqadmin` in one JVM for many commands: a start takes seconds, a command tenths."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from queue import Empty, Queue

from lakebroker_testing.gateway import ProcessError
from lakebroker_testing.real_rocketmq import RocketMQ

_SOURCE = Path(__file__).with_name("MqAdmin.java")
_END = "\x04\n"
_TIMEOUT_S = 120.0


class MqAdmin:
    """Commands to brokers behind any name server, one at a time; what it writes goes to `folder`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._errors = folder / "mqadmin.err"
        with self._errors.open("ab") as log:
            self._process = RocketMQ(folder, {}, broker=False).java_process(_SOURCE, log)
        self._lines: Queue[str] = Queue()
        self._turn = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def run(self, name_server: str, *arguments: str) -> str:
        """What a command prints on its standard output. Raises ProcessError."""
        assert self._process.stdin is not None
        line = "\t".join((*arguments, "-n", name_server))
        with self._turn:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            return self._printed(line)

    def errors(self) -> str:
        """What went to stderr so far: stack traces of commands that failed."""
        return self._errors.read_text(errors="replace")

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _printed(self, line: str) -> str:
        found: list[str] = []
        while True:
            try:
                text = self._lines.get(timeout=_TIMEOUT_S)
            except Empty as error:
                raise ProcessError(f"mqadmin {line!r} did not end in {_TIMEOUT_S:g} s") from error
            if not text:
                raise ProcessError(f"mqadmin ended: {self.errors()[-2000:]}")
            if text == _END:
                return "".join(found).removesuffix("\n")
            found.append(text)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._lines.put(text)
        self._lines.put("")
