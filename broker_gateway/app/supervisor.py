"""Several share-nothing brokers on one host: starts them, restarts the dead, tells them of each other.

Each has its own name (`broker-a-0`), store (a folder of that name in `storePathRootDir`), folders of the log (see
`_log_folders`) and ports (the n-th: the configured ones plus n, remoting plus 10 n; 0 stays 0). A broker that ends before
it ever served is not started again: its configuration is wrong, and everything stops with its exit status. A folder that
is a store itself is refused: brokers beside it would begin empty. So is one where another supervisor runs.

The brokers are in sessions of their own, which a signal to the process group does not reach. The end of their standard
input tells them to stop, or that the supervisor is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.registration import local_address
from broker_gateway.runtime.errors import HostError, OptionError, StartError, reason
from broker_gateway.runtime.logs import configure_logs
from broker_gateway.runtime.service_manager import tell, watchdog_s
from broker_gateway.runtime.stop_signals import Signals
from store.errors import StoreLockedError
from store.log.claim import PROCESSES_FOLDER, holds_store, stores_inside
from store.log.recovery import lock_folder

log = structlog.get_logger(__name__)

PEERS_FILE = "peers.json"
_LOOK_S = 0.1
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_STABLE_S = 60.0
_END_S = 50.0
"""What a broker may take to end beside the grace that its running calls have."""
_PORT_STEP = {"grpcServerPort": 1, "metricsPromExporterPort": 1, "listenPort": 10}


@dataclass(slots=True)
class Child:
    """A broker: how it is started, and what is known of it."""

    name: str
    command: list[str]
    port_file: Path
    process: subprocess.Popen[bytes] | None = None
    ports: dict[str, Any] = field(default_factory=dict)
    served: bool = False
    started_at: float = 0.0
    start_at: float = 0.0
    wait_s: float = _FIRST_WAIT_S


def child_options(config: GatewayConfig, number: int, folder: Path) -> dict[str, str]:
    """What the n-th broker is given beside the options of all."""
    options = config.options()
    name = f"{config.broker.broker_name}-{number}"
    given = {
        "brokerName": name,
        "storePathRootDir": str(config.store.store_path_root_dir / name),
        "lakePortFile": str(folder / f"{name}.json"),
        "lakePeersFile": str(folder / PEERS_FILE),
        "lakeStopAtEndOfInput": "true",
    }
    if options["storePathCommitLog"]:
        given["storePathCommitLog"] = _log_folders(config, name)
    for option, step in _PORT_STEP.items():
        port = int(options[option])
        if port > 0:
            if port + step * number > 65535:
                raise OptionError(f"{option}={port} leaves no room for {number + 1} processes")
            given[option] = str(port + step * number)
    if config.registration.lake_with_namesrv and number > 0:
        given |= _at_the_firsts_name_server(config)
    return given


def _log_folders(config: GatewayConfig, name: str) -> str:
    """storePathCommitLog of one broker: what is in `storePathRootDir` is at the same place in its store, any other folder
    has one of its name."""
    root = Path(os.path.abspath(config.store.store_path_root_dir))
    given = (Path(os.path.abspath(each)) for each in config.store.log_folders())
    return ",".join(
        str(root / name / each.relative_to(root) if each.is_relative_to(root) else each / name)
        for each in given
    )


def _at_the_firsts_name_server(config: GatewayConfig) -> dict[str, str]:
    """Only the first broker runs the name server; the others register there."""
    port = config.registration.lake_namesrv_listen_port
    if port == 0:
        raise OptionError("lakeNamesrvListenPort=0: several processes need to know it; give a port")
    servers = [local_address(config.proxy.grpc_bind_address, port), config.broker.namesrv_addr]
    return {"lakeWithNamesrv": "false", "namesrvAddr": ";".join(each for each in servers if each)}


def supervise(config: GatewayConfig, arguments: list[str], processes: int) -> int:
    """Runs the brokers until a signal stops them; returns the exit status. `arguments` are those of the command.

    Raises OptionError, StartError.
    """
    configure_logs(config.lake.lake_log_format, config.lake.lake_log_level)
    root = config.store.store_path_root_dir
    names = {f"{config.broker.broker_name}-{number}" for number in range(processes)}
    _check_root(root, names)
    folder = root / PROCESSES_FOLDER
    children = []
    for number in range(processes):
        options = child_options(config, number, folder)
        settings = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", "broker_gateway.cli.main", "gateway", *arguments, *settings]
        children.append(Child(options["brokerName"], command, Path(options["lakePortFile"])))
    with _usable(root):
        folder.mkdir(parents=True, exist_ok=True)
        locked = _lock(folder)
    try:
        refuse_store(root)  # somebody may have come in between
        with _usable(root):
            (folder / PEERS_FILE).unlink(missing_ok=True)
        end_s = config.proxy.grpc_shutdown_time_seconds + _END_S
        return Supervisor(children, folder / PEERS_FILE, config.lake.lake_port_file, end_s).run()
    finally:
        os.close(locked)


@contextlib.contextmanager
def _usable(root: Path) -> Iterator[None]:
    """What goes wrong within with a file is the folder's fault. Raises HostError."""
    try:
        yield
    except OSError as error:
        raise HostError(
            f"the folder {root} cannot be used: {reason(error)}; give another one (--store)"
        ) from error


def _lock(folder: Path) -> int:
    """A descriptor that keeps other brokers out of the root until it is closed. Raises HostError, OSError."""
    refused = f"another `lakebroker gateway --processes` runs in {folder.parent}; stop it, or give another folder (--store)"
    try:
        return lock_folder(folder, refused)
    except StoreLockedError as error:
        raise HostError(refused) from error


def _check_root(root: Path, names: Set[str]) -> None:
    """Raises StartError when the folder is a store itself; warns of stores in it that none of these brokers has."""
    refuse_store(root)
    with _usable(root):
        others = [path for path in stores_inside(root) if path.name not in names]
    if others:
        log.warning(
            "these stores are not started; set their brokerName or raise --processes to start them",
            stores=[str(path) for path in others],
        )


def refuse_store(root: Path) -> None:
    """Raises StartError when the folder is the store of one broker, HostError when it cannot be looked at."""
    with _usable(root):
        is_store = holds_store(root)
    if is_store:
        raise StartError(
            f"{root} is the store of one broker, and --processes gives each broker a folder of its own in it, so all "
            "of them would start empty; start it without --processes, or give another folder (--store)"
        )


class Supervisor:
    """Watches the brokers. It retries what the host refuses: to write its files, and to start a broker."""

    def __init__(self, children: list[Child], peers_file: Path, port_file: Path | None, end_s: float) -> None:
        self._children = children
        self._end_s = end_s
        self._peers_file = peers_file
        self._port_file = port_file
        self._stopped = False
        self._signals = Signals()
        self._at_once = False
        self._ready = False
        self._announced: list[dict[str, Any]] = []
        self._told: set[str] = set()

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        status = 0
        try:
            while not self._stopped:
                for child in self._children:
                    failed = self._looked_after(child)
                    if failed is not None:
                        log.error(
                            "a broker could not start; all are stopped", broker=child.name, status=failed
                        )
                        status = failed
                        self._stopped = True
                with self._tried("the other brokers' ports cannot be told"):
                    self._announce()
                self._tell_manager()
                time.sleep(_LOOK_S)
        finally:
            tell(STOPPING=1)
            status = self._end() or status
        return status

    def _tell_manager(self) -> None:
        """READY once all have served; the pulse at every look, which is often enough for any watchdog."""
        if not self._ready and all(child.served for child in self._children):
            self._ready = True
            tell(READY=1, STATUS=f"{len(self._children)} brokers serve")
        if watchdog_s() is not None:
            tell(WATCHDOG=1)

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopped = True
        self._at_once |= self._signals.again()

    @contextlib.contextmanager
    def _tried(self, event: str) -> Iterator[None]:
        """An error of the host is logged once until it goes well: the brokers that run go on."""
        try:
            yield
        except (OSError, ValueError) as error:
            if event not in self._told:
                self._told.add(event)
                log.error(event, error=str(error))
        else:
            self._told.discard(event)

    def _looked_after(self, child: Child) -> int | None:
        """Starts or restarts a broker; the exit status of one that never served."""
        now = time.monotonic()
        if child.process is None:
            if now >= child.start_at:
                child.start_at = now + child.wait_s
                with self._tried(f"{child.name} cannot be started; it is tried again"):
                    child.port_file.unlink(missing_ok=True)
                    child.ports = {}
                    child.process = subprocess.Popen(
                        child.command, stdin=subprocess.PIPE, start_new_session=True, env=_own_environment()
                    )
                    child.started_at = now
            return None
        ended = child.process.poll()
        if not child.ports and child.port_file.exists():  # also of one that died right behind it
            with self._tried(f"the ports of {child.name} cannot be read"):
                child.ports = json.loads(child.port_file.read_text())
                child.served = True
        if ended is None:
            if child.ports and now - child.started_at > _STABLE_S:
                child.wait_s = _FIRST_WAIT_S
            return None
        if not child.served and ended != 0:  # else somebody stopped it, in its first moments
            return _status(ended)
        log.error("a broker died; it is started again", broker=child.name, status=ended, wait_s=child.wait_s)
        child.process, child.ports = None, {}
        child.start_at = now + child.wait_s
        child.wait_s = min(child.wait_s * 2, _LONGEST_WAIT_S)
        return None

    def _announce(self) -> None:
        """Tells the brokers, and whoever asked with `lakePortFile`, which of them serve where. Raises OSError."""
        serving = [
            {
                "name": child.name,
                "grpc": child.ports["grpc"],
                "metrics": child.ports["metrics"],
                "remoting": child.ports["remoting"],
                "pid": child.ports["pid"],
            }
            for child in self._children
            if child.ports
        ]
        if serving == self._announced:
            return
        _write(self._peers_file, json.dumps(serving))
        if self._port_file is not None and len(serving) == len(self._children):
            _write(self._port_file, json.dumps({"processes": serving}))
        self._announced = serving

    def _end(self) -> int:
        """The end of their input for all, SIGKILL for those that have not ended long after it; their worst exit status.

        No signal: they may have got one already, with their control group, and a second one, by us who come late, would
        end them at once.
        """
        running = {child.name: child.process for child in self._children if child.process is not None}
        for child in self._children:
            if child.process is not None and child.process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    child.process.stdin.close()
        until = time.monotonic() + self._end_s
        while left := {name: each for name, each in running.items() if each.poll() is None}:
            if self._at_once or time.monotonic() > until:
                log.error("brokers that do not end are killed", brokers=sorted(left))
                for process in left.values():
                    process.kill()
                for process in left.values():
                    process.wait()
            time.sleep(_LOOK_S)
        with self._tried("files of this run are left"):
            if self._port_file is not None:
                self._port_file.unlink(missing_ok=True)
            self._peers_file.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # else it has files of brokers that ran
            self._peers_file.parent.rmdir()
        return max((_status(process.returncode) for process in running.values()), default=0)


def _own_environment() -> dict[str, str]:
    """A broker's: the service manager is spoken to by the supervisor alone."""
    return {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}


def _status(returned: int) -> int:
    """As a shell says it: 128 and the signal for what a signal ended."""
    return returned if returned >= 0 else 128 - returned


def _write(path: Path, text: str) -> None:
    staged = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    staged.write_text(text)
    staged.rename(path)
