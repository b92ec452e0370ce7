"""Processes of lakebroker: a gateway, a name server and a reput, on free ports, ended by their ids."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lakebroker_testing.prestarted import ROOT, Limits, Process, command, start
from lakebroker_testing.programs import START_S, ProcessError, until_ready

__all__ = [
    "CACHE",
    "LOOPBACK",
    "PATIENT",
    "ROOT",
    "START_S",
    "Gateway",
    "NameServer",
    "ProcessError",
    "Reput",
    "command",
    "settings_of",
]

CACHE = ROOT / ".cache" if (ROOT / "pyproject.toml").exists() else Path.home() / ".cache" / "lakebroker"
"""Where programs fetched for tests are kept."""
STOP_S = START_S
LOOPBACK = {
    "grpcServerPort": "0",
    "grpcBindAddress": "127.0.0.1",
    "listenPort": "0",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "metricsPromExporterPort": "0",
    "lakeNamesrvListenPort": "0",
}
"""Options of a broker, and of a name server in its process, on free ports of the loopback interface."""
PATIENT = dict.fromkeys(
    (
        "waitTimeMillsInSendQueue",
        "waitTimeMillsInPullQueue",
        "waitTimeMillsInAckQueue",
        "waitTimeMillsInTransactionQueue",
        "waitTimeMillsInAdminBrokerQueue",
        "osPageCacheBusyTimeOutMills",
        "syncFlushTimeout",
    ),
    "60000",
)
"""Options with which no call is refused because the machine is busy with other work."""


def settings_of(options: Mapping[str, str]) -> list[str]:
    """The options as arguments of a command: `--set NAME=VALUE` for each."""
    return [part for name, value in options.items() for part in ("--set", f"{name}={value}")]


class Gateway:
    """A gateway over the store in `folder`, on free ports of the loopback interface."""

    def __init__(
        self,
        folder: Path,
        *,
        transport: str = "http2",
        wrapper: Sequence[str] = (),
        limits: Limits | None = None,
        config_file: Path | None = None,
        patient: bool = True,
        **options: str,
    ) -> None:
        """`wrapper` goes before the command, such as one that enters a namespace; `limits` are those of the process. `patient`
        stands for `PATIENT`, which `options` override. Raises ValueError for both `wrapper` and `limits`."""
        if wrapper and limits:
            raise ValueError(
                "limits cannot be set through a wrapper: leave out one, or use prlimit as wrapper"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self._wrapper, self._limits = wrapper, limits
        self._file = ["-c", str(config_file)] if config_file is not None else []
        self.folder = folder
        self._transport = transport
        self.log = folder / "gateway.log"
        self._ports = folder / "ports.json"
        self._options = {
            "storePathRootDir": str(folder / "store"),
            **LOOPBACK,
            "mappedFileSizeCommitLog": str(64 << 20),
            "lakeAutoCreateTopics": "true",
            "lakePortFile": str(self._ports),
            **(PATIENT if patient else {}),
            **options,
        }
        self.grpc_port = 0
        self.metrics_port = 0
        self.remoting_port = 0
        self.name_server_port = 0
        """Of its own name server (`lakeWithNamesrv`); 0 without."""
        self.process: Process | None = None

    def __enter__(self) -> Gateway:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def remoting_address(self) -> str:
        return f"127.0.0.1:{self.remoting_port}"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self) -> None:
        """Returns when the gateway serves. Raises ProcessError."""
        self._ports.unlink(missing_ok=True)
        settings = settings_of(self._options)
        with self.log.open("ab") as log:
            words = ["gateway", *self._file, "--transport", self._transport, *settings]
            self.process = _start(words, self._wrapper, limits=self._limits, stdout=log, stderr=log)
        until_ready("the gateway", self.process, self.log, self._ports.exists)
        ports = json.loads(self._ports.read_text())
        self.grpc_port, self.metrics_port = ports["grpc"], ports["metrics"]
        self.remoting_port, self.name_server_port = ports["remoting"], ports.get("namesrv", 0)

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class NameServer:
    """A name server with its files in `folder`, on a free port of the loopback interface; or as a file says (-c)."""

    def __init__(self, folder: Path, *, config_file: Path | None = None, **options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = ["-c", str(config_file)] if config_file is not None else []
        self.folder = folder
        self.log = folder / "namesrv.log"
        own = {
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(folder / "kvConfig.json"),
            "configStorePath": str(folder / "namesrv.properties"),
        }
        self._options = {**(own if config_file is None else {}), **options}
        self.port = 0
        self.process: Process | None = None

    def __enter__(self) -> NameServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Returns when the boot line is there. Raises ProcessError."""
        settings = settings_of(self._options)
        output = self.folder / "namesrv.out"
        with self.log.open("ab") as log, output.open("wb") as out:
            self.process = start("namesrv", *self._file, *settings, stdout=out, stderr=log)
        until_ready("the name server", self.process, self.log, lambda: output.read_text().endswith("\n"))
        self.port = int(output.read_text().rpartition(":")[2])

    def terminate(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout_s)


class Reput:
    """A continuous reput of a gateway into a lake; `batches` holds its lines of JSON so far."""

    def __init__(self, lake: Path | str, log: Path, *arguments: str, wrapper: Sequence[str] = ()) -> None:
        """`wrapper` as of `Gateway`."""
        self.log = log
        self.output = log.with_suffix(".jsonl")
        with log.open("ab") as errors, self.output.open("wb") as out:
            words = ["reput", "--lake", str(lake), "--json", *arguments]
            self.process = _start(words, wrapper, stdout=out, stderr=errors, start_new_session=True)

    def __enter__(self) -> Reput:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def batches(self) -> list[dict[str, float]]:
        """Reports of the batches committed so far. Raises ProcessError when the job has ended by itself."""
        if self.process.poll():
            raise ProcessError(f"the reput ended: {self.log.read_text()[-3000:]}")
        return [json.loads(line) for line in self.output.read_text().splitlines() if line.endswith("}")]

    def stop(self, timeout_s: float = STOP_S) -> int:
        """SIGTERM, then SIGKILL for the job and the JVM it started; returns the exit status."""
        try:
            if self.process.poll() is None:
                self.process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout_s)
        finally:  # ctrl-C comes while it waits
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            status = self.process.wait()
        return status


def _start(
    words: Sequence[str], wrapper: Sequence[str], limits: Limits | None = None, **settings: Any
) -> Process:
    if not wrapper:
        return start(*words, limits=limits, **settings)
    return subprocess.Popen([*wrapper, *command(*words)], cwd=ROOT, **settings)
