"""RocketMQ's own `mqadmin` in one JVM for many commands: a start takes seconds, a command tenths."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from queue import Empty, Queue

from lakebroker_testing.gateway import ProcessError
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.waiting import LIMIT_S

_SOURCE = Path(__file__).with_name("MqAdmin.java")
_END = "\x04\n"
_REFUSED = "TIMEOUT_CLEAN_QUEUE"
"""A broker's word on stderr for a call that waited too long in its queue."""
_LATE = (
    "RemotingTimeoutException",
    "RemotingTooMuchRequestException",  # the time was over before the call was sent
    "RemotingConnectException",  # a client gives up waiting for the lock of its connections
    "UNANSWERED",
)
"""What stderr has when a time limit of mqadmin ran out; also when a call failed at once, which is the broker's fault."""
_LEAST_LIMIT_S = 2.9
"""A little less than the shortest of those limits."""


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
        """What a command prints on its standard output. Raises ProcessError.

        It gives servers 3 to 5 s: a command that a busy machine took or answered too late is given again.
        """
        assert self._process.stdin is not None
        line = "\t".join((*arguments, "-n", name_server))
        deadline = time.monotonic() + LIMIT_S
        with self._turn:
            while True:
                before, began = self._errors.stat().st_size, time.monotonic()
                self._process.stdin.write(f"{line}\n")
                self._process.stdin.flush()
                printed = self._printed(line)
                said = self._errors.read_bytes()[before:].decode(errors="replace")
                late = time.monotonic() - began > _LEAST_LIMIT_S and any(each in said for each in _LATE)
                if not late and _REFUSED not in said:
                    return printed
                if time.monotonic() > deadline:
                    raise ProcessError(f"mqadmin {line!r} was late each time: {self.errors()[-2000:]}")

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
                text = self._lines.get(timeout=LIMIT_S)
            except Empty as error:
                raise ProcessError(f"mqadmin {line!r} did not end in {LIMIT_S:g} s") from error
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
