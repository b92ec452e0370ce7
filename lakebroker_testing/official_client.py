"""The official RocketMQ Python client in a process and a virtual environment of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import CACHE
from lakebroker_testing.programs import START_S
from lakebroker_testing.virtual_environment import install, new_environment

REQUIREMENTS = ("rocketmq-python-client==5.1.2",)
_CACHE = CACHE / "official-python-client-5.1.2"


class OfficialClientError(Exception):
    """The client answered an error, died or did not answer in time."""


def interpreter() -> Path:
    """Python of the environment that holds the client; made at first use. Raises ProcessError."""
    python = _CACHE / "bin" / "python"
    with filled_once(_CACHE) as missing:
        if missing:
            install(new_environment(_CACHE), *REQUIREMENTS)
    return python


class OfficialClient:
    """A driver process (`official_client_driver.py`); `call` sends a command and returns its answer."""

    def __init__(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._home = tempfile.TemporaryDirectory(prefix="rocketmq-client-", ignore_cleanup_errors=True)
        driver = Path(__file__).with_name("official_client_driver.py")
        self._process = subprocess.Popen(
            [str(interpreter()), "-P", "-X", "faulthandler", str(driver)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "HOME": self._home.name, "PYTHONPATH": ""},
            start_new_session=True,  # a terminal's ctrl-C is ours to pass on; it ends with its input
        )

    def __enter__(self) -> OfficialClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, do: str, timeout_s: float = START_S, **arguments: Any) -> dict[str, Any]:
        """Raises OfficialClientError; a client that does not answer in time is ended."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            raise OfficialClientError(f"the client is gone at {do}: {self._tail()}") from error
        line = b""
        deadline = time.monotonic() + timeout_s
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise OfficialClientError(f"no answer to {do} in {timeout_s:g} s: {self._stacks()}")
            chunk = process.stdout.readline()
            if not chunk:
                raise OfficialClientError(f"the client ended at {do}: {self._tail()}")
            line += chunk
        answer: dict[str, Any] = json.loads(line)
        if not answer.pop("ok"):
            raise OfficialClientError(f"{do}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Stops the clients in it, then the process."""
        if self._process.poll() is None:
            try:
                self.call("stop", timeout_s=15)
            except OfficialClientError as error:
                sys.stderr.write(f"{error}\n")
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what was asked last, of a client that was gone
                    stream.close()
        self._errors.close()
        self._home.cleanup()

    def log_tail(self) -> str:
        """The end of the client's own log, which alone has the reason of some of its errors."""
        log = Path(self._home.name) / "logs" / "rocketmq_python" / "rocketmq_client.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else f"no log at {log}"

    def _stacks(self) -> str:
        """Ends the process: where each of its threads was."""
        self._process.send_signal(signal.SIGABRT)
        self._process.wait()
        return self._tail(20_000)

    def _tail(self, most: int = 2000) -> str:
        """The end of what it wrote to standard error. The driver shares the file's position, so it is left alone."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), most, max(0, size - most)).decode("utf-8", "replace")


def just_started(error: OfficialClientError) -> bool:
    """Whether a real proxy has not the client's settings yet, or its name server not the broker: ask again."""
    return any(text in str(error) for text in ('"settings" is null', "failed to fetch topic"))


def when_started(official: OfficialClient, do: str, **arguments: Any) -> dict[str, Any]:
    """The answer to a call, which is made again for `START_S` while a real proxy has just started. Raises OfficialClientError."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            return official.call(do, **arguments)
        except OfficialClientError as error:
            if not just_started(error):
                raise
            if time.monotonic() > deadline_s:
                raise OfficialClientError(f"{error}, for {START_S:g} s; {official.log_tail()}") from error
            time.sleep(0.5)
