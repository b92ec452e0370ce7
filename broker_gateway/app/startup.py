"""Starting and stopping the broker process, in order.

| step | does | undone by |
|---|---|---|
| configuration | options, logs; refused ones end it here | - |
| extensions | what installed packages plug in | - |
| access | the token of Log and Admin services | - |
| host | room on the disks, open files (`host_checks.py`) | - |
| certificate | the operator's is read | - |
| remoting ports | are taken, since records carry them | given back |
| other ports | are looked at, so that one that is taken ends the start before there is a store | - |
| store | lock, recovery, flushing; where the lake is ahead of the log, a new one is begun (`new_log.py`) | flush, remove `abort`, unlock |
| metadata | topics, groups, offsets and what is in flight, from the journal; system topics | - |
| services | scheduled tasks begin | tasks end, pending minutes and a snapshot are journaled |
| server | the gRPC port opens | drained: no new calls, waiting ones end, then cancelled |
| metrics | their port opens, sinks are fed | closed |
| remoting | the remoting ports are listened on | closed, requests being served get 1 s |
| registration | name servers are told, once everything can be served | unregistered before all else |
| announcement | port file, boot line, readiness | port file removed |

Ports open, and the broker registers, once recovery is done. SIGTERM and SIGINT stop it in reverse order, during the
start with the step that is under way, and in the middle of the scan; what fails at any step undoes the ones before
it, says why on standard error, and ends with the original's status. A last snapshot that cannot be written, on a full
disk, is logged, and the status stays 0: the journal has everything.

| status | original | meaning |
|---|---|---|
| 255 | -1 | it cannot start: a port or the store is taken, the store is damaged; or its store cannot be closed cleanly |
| 254 | -2 | something on this host, such as a folder, cannot be used |
| 253 | -3 | a bad option or configuration file |
| 252 | -4 | two modes that exclude each other |
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import structlog
import uvloop

from broker_gateway.api.extensions import Extensions
from broker_gateway.api.grpc.extended import around, within
from broker_gateway.api.grpc.health import HealthService
from broker_gateway.api.grpc.log import LogService
from broker_gateway.api.remoting.handed_over import HandedOverRequests
from broker_gateway.api.remoting.ports import Ports, take_ports
from broker_gateway.api.remoting.server import RemotingEndpoint
from broker_gateway.app.broker import Broker
from broker_gateway.app.gauges import gauges
from broker_gateway.app.grpc_server import bind, check_transport, operators_certificate
from broker_gateway.app.host_checks import check_host, most_connections
from broker_gateway.app.new_log import compare_with_lake
from broker_gateway.app.open_store import open_store
from broker_gateway.app.other_ports import metrics_port, other_ports
from broker_gateway.app.plug_ins import load_extensions
from broker_gateway.auth import metrics_calls
from broker_gateway.auth.grpc_calls import authorized
from broker_gateway.auth.policy import OWN_MACHINE, LoopbackPolicy, Policy, TokenPolicy
from broker_gateway.auth.rpcs import RPCS
from broker_gateway.cluster.startup import start_registration
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.reload import Configuration
from broker_gateway.lake.reader import LakeReadStoppedError
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.cleanup import Cleanup
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.runtime.delayed_report import tell_now
from broker_gateway.runtime.errors import HostError, StartError, reason
from broker_gateway.runtime.logs import configure_logs, say
from broker_gateway.runtime.ports import check_ports
from broker_gateway.runtime.service_manager import beat, tell
from broker_gateway.runtime.stop_signals import stop_at_end_of_input, stop_at_signals
from broker_gateway.transport.methods import Server
from store.delay_levels import parse_delay_levels
from store.errors import RecoveryStoppedError, StoreError
from store.log import permissions
from store.log_source import StoreLog
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
_LOADER = "load-compiled"
"""The thread that loads compiled code."""
_LOADING_SWITCH_S = 0.0005


def run(config: GatewayConfig, warnings: Iterable[str] = (), file: Path | None = None) -> None:
    """Runs the broker until a signal stops it; `file` is where its options came from. Raises StartError."""
    permissions.use(group_read=config.lake.lake_store_group_read)
    _log_as(config)
    for warning in warnings:
        log.warning(warning)
    configuration = Configuration(config, file)
    configuration.on_change(_log_as)
    # What was imported stays, and the collection at the end of the start has less to look at. Collecting first would take as long
    # as what is saved; the little garbage of the imports is kept.
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve_and_tell(configuration))
    except StartError:
        raise
    except Exception as error:
        log.exception("the broker ended")
        raise StartError(f"the broker ended: {type(error).__name__}: {error}; its log says more") from error


def end_beside_the_compiler() -> None:
    """Ends the process at once where compiled code is still being loaded. All is stopped and closed by now; at the end of
    the interpreter a thread that is within the compiler aborts the process."""
    if any(thread.name == _LOADER for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _log_as(config: GatewayConfig) -> None:
    broker = config.broker
    name = f"{broker.broker_name}_{broker.broker_id}" if broker.isolate_log_enable else ""
    configure_logs(config.lake.lake_log_format, config.lake.lake_log_level, name)


async def _serve_and_tell(configuration: Configuration) -> None:
    """Serves; what is left to log is logged at the end."""
    try:
        await _serve(configuration)
    finally:
        tell_now()


async def _serve(configuration: Configuration) -> None:
    stopped = asyncio.Event()
    stop_at_signals(stopped)
    if configuration.current.lake.lake_stop_at_end_of_input:
        stop_at_end_of_input(stopped)
    async with Cleanup() as cleanup:
        start = _Start(configuration, stopped, cleanup)
        try:
            await start.all()
        except _StoppedError:
            log.info("stopped before it served", broker=configuration.current.broker.broker_name)
            return
        beating = asyncio.create_task(beat(), name="service-manager")
        tell(READY=1, STATUS="serving")
        await stopped.wait()
        beating.cancel()
        tell(STOPPING=1, STATUS="stopping")
        cleanup.add("ending calls that wait", start.broker.drain)  # beside the server's grace
        cleanup.add("unregistering", start.broker.registration.stop)  # first of all: clients look elsewhere
        start.health.stopping()
        log.info("stopping", broker=configuration.current.broker.broker_name)
    log.info("stopped", broker=configuration.current.broker.broker_name)


class _StoppedError(Exception):
    """A signal came before everything was up."""


class _Start:
    """The steps, each with what the ones before it made; `cleanup` has what ends them."""

    store: MessageStore
    broker: Broker
    server: Server
    health: HealthService
    _remoting: Ports

    def __init__(self, configuration: Configuration, stopped: asyncio.Event, cleanup: Cleanup) -> None:
        self.configuration = configuration
        self.config = configuration.current
        self._stopped = stopped
        self._cleanup = cleanup
        self._extensions = Extensions()
        self._ports: dict[str, int] = {}

    async def all(self) -> None:
        """Every step in order. Raises StartError, or _StoppedError; the caller's `cleanup` ends what was begun."""
        steps: Sequence[tuple[str, Callable[[], Awaitable[None]]]] = (
            ("extensions", self._load_extensions),
            ("access", self._make_policies),
            ("host", self._check_host),
            ("certificate", self._check_certificate),
            ("remoting ports", self._take_ports),
            ("other ports", self._check_ports),
            ("store", self._open_store),
            ("metadata", self._load_metadata),
            ("services", self._start_services),
            ("server", self._open_server),
            ("metrics", self._open_metrics),
            ("remoting", self._open_remoting),
            ("registration", self._register),
            ("announcement", self._announce),
        )
        for name, step in steps:
            self._go_on()
            log.debug("starting", step=name)
            await step()

    def _go_on(self) -> None:
        if self._stopped.is_set():
            raise _StoppedError

    async def _load_extensions(self) -> None:
        self._extensions = load_extensions(self.config)

    async def _make_policies(self) -> None:
        remote = self.config.lake.lake_remote_admin
        self._policy = TokenPolicy(self.config.lake.lake_token_file)
        self._remoting_policy = LoopbackPolicy(lambda: remote, OWN_MACHINE.format("broker"))
        self._name_server_policy: Policy | None = None  # the one of its own options

    async def _check_host(self) -> None:
        await asyncio.to_thread(check_host, self.config)  # looks at disks

    async def _take_ports(self) -> None:
        self._remoting = await asyncio.to_thread(take_ports, self.config)  # looks up a host name
        self._cleanup.add("giving the remoting ports back", self._remoting.close)
        self.config = self.configuration.bound(listen_port=self._remoting.port)

    async def _check_certificate(self) -> None:
        check_transport(self.config)
        await asyncio.to_thread(operators_certificate, self.config)

    async def _check_ports(self) -> None:
        await asyncio.to_thread(check_ports, other_ports(self.config))  # looks up host names

    async def _open_store(self) -> None:
        # on a thread: a scan must not hold up signals
        try:
            self.store = await asyncio.to_thread(open_store, self.config, self._stopped.is_set)
        except RecoveryStoppedError as error:
            raise _StoppedError from error
        self._cleanup.add("closing the store", self._close_store)
        try:
            await asyncio.to_thread(compare_with_lake, self.config, self.store, self._stopped.is_set)
        except LakeReadStoppedError as error:
            raise _StoppedError from error

    def _close_store(self) -> None:
        try:
            self.store.close()
        except StoreError as error:
            raise StartError(
                f"the broker stopped, but the end of its log may not be on disk: {error}"
            ) from error
        except OSError as error:  # the log itself was flushed
            raise StartError(
                f"the broker stopped, but its store was not closed cleanly: {error}; the next start looks at all of it"
            ) from error

    async def _load_metadata(self) -> None:
        broker = self.config.broker
        metrics = Metrics(broker.broker_cluster_name, broker.broker_name)
        self.broker = Broker(self.configuration, self.store, metrics, self._extensions)
        replayed = self.broker.load()
        log.info("journal replayed", snapshot_offset=replayed.snapshot_offset, records=replayed.records)

    async def _start_services(self) -> None:
        self._cleanup.add("ending the scheduled tasks", self.broker.stop)
        self.broker.schedule()

    async def _open_server(self) -> None:
        extended, asked = around(self._extensions), authorized(self._policy, RPCS)
        levels = parse_delay_levels(self.config.store.message_delay_level)
        log_service = LogService(StoreLog(self.store, levels), on_read=self.broker.core.metrics.log_read)
        most_of_one = self.config.lake.lake_max_connections_per_address
        self._slots = ConnectionSlots(lambda: most_connections(self.store), most_of_one)
        self.server, self.health = bind(
            self.config, self.broker, log_service, within(extended, asked), self._slots
        )
        grace_s = self.config.proxy.grpc_shutdown_time_seconds
        self._cleanup.add("closing the gRPC port", lambda: self.server.stop(grace_s))
        self.configuration.on_change(self._configure_server)
        self._configure_server(self.config)
        await self.server.start()
        self._ports["grpc"] = self.server.port
        self.config = self.configuration.bound(grpc_port=self.server.port)

    def _configure_server(self, config: GatewayConfig) -> None:
        self.server.close_idle_after(float(config.server.server_channel_max_idle_time_seconds))

    async def _open_metrics(self) -> None:
        self._ports["metrics"] = _serve_metrics(self.config, self.broker, self._policy, self._cleanup)
        for sink in self._extensions.metrics_sinks:
            self.broker.feed(sink, self.config.lake.lake_metrics_sink_interval / 1000)

    async def _open_remoting(self) -> None:
        remoting = RemotingEndpoint(
            self.config,
            self.broker.administration,
            self.broker.admission,
            self._extensions,
            (
                self.broker.registration,
                HandedOverRequests(
                    self.broker.messaging.send_ordered, self.broker.messaging.lite_subscription_told
                ),
            ),
            self._remoting_policy,
            self._slots,
        )
        self._cleanup.add("closing the remoting ports", remoting.stop)
        await remoting.start(self._remoting)
        self._ports["remoting"] = self._remoting.port

    async def _register(self) -> None:
        """Last of what others see: from here on name servers send clients to this broker."""
        self._go_on()
        self._ports |= await start_registration(
            self.config, self.broker.registration, self._slots, self._name_server_policy, self._cleanup
        )

    async def _announce(self) -> None:
        self._go_on()
        tune_collector()
        _announce(self.config, self._ports, self._cleanup)
        threading.Thread(
            target=_load_compiled,
            args=(self.broker, asyncio.get_running_loop()),
            name=_LOADER,
            daemon=True,
        ).start()


def tune_collector() -> None:
    """Calls leave hardly any cycles: looking for them every 700 objects costs 6 % of a send."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)


def _load_compiled(broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
    """Loads compiled code beside the event loop, which waits as short as can be for this thread meanwhile."""
    before, began = sys.getswitchinterval(), time.monotonic()
    sys.setswitchinterval(_LOADING_SWITCH_S)
    try:
        if broker.load_compiled():
            _tell_compiled(time.monotonic() - began)
    finally:
        sys.setswitchinterval(before)
    gc.freeze()
    with contextlib.suppress(RuntimeError):  # the loop is closed: it was stopped meanwhile
        loop.call_soon_threadsafe(broker.admission.check_waiting)


def _tell_compiled(seconds: float) -> None:
    from store.kernels.compiled import COMPILING  # has the compiler with it

    log.info(
        "compiled code loaded",
        seconds=round(seconds, 1),
        functions=COMPILING.loaded,
        compiled_now=COMPILING.compiled,
        compiling_seconds=round(COMPILING.seconds, 1),
    )


def _serve_metrics(config: GatewayConfig, broker: Broker, policy: Policy, cleanup: Cleanup) -> int:
    """Opens the metrics endpoint; returns its port, -1 when it is off."""
    broker.metrics.gauges(partial(gauges, broker))
    if config.proxy.metrics_prom_exporter_port < 0:
        return -1
    host, port = config.proxy.metrics_prom_exporter_host, config.proxy.metrics_prom_exporter_port
    try:
        http, _ = broker.metrics.serve(host, port, partial(metrics_calls.authorized, policy))
    except OSError as error:
        raise metrics_port(config).refused(error) from error
    cleanup.add("closing the metrics port", http.server_close)
    cleanup.add("ending the metrics server", http.shutdown)
    return int(http.server_port)


def _announce(config: GatewayConfig, ports: dict[str, int], cleanup: Cleanup) -> None:
    """Writes the port file and the boot line; `ports` by what is served there."""
    path = config.lake.lake_port_file
    if path is not None:
        staged = Path(f"{path}.tmp")
        try:
            staged.write_text(json.dumps({**ports, "pid": os.getpid()}))
            staged.chmod(0o644)  # no secret, and for others to read
            staged.rename(path)
            cleanup.add("removing the port file", partial(path.unlink, missing_ok=True))
        except OSError as error:
            with contextlib.suppress(OSError):
                staged.unlink()
            raise HostError(
                f"lakePortFile={path} cannot be written: {reason(error)}; name a file in a folder to write to"
            ) from error
    name, ip, port = config.broker.broker_name, config.broker.broker_ip1, config.broker.listen_port
    line = f"The broker[{name}, {ip}:{port}] boot success. serializeType=JSON"
    if config.broker.namesrv_addr:
        line += f" and name server is {config.broker.namesrv_addr}"
    say(line)
    log.info("serving", **{f"{what}_port": port for what, port in ports.items()})
