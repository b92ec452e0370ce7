"""Starting and stopping the broker process, in order.

| step | undone by |
|---|---|
| logs, access token | - |
| remoting ports taken | given back |
| store: lock, recovery, flushing | flush, remove `abort`, unlock |
| broker: journal replayed, scheduled work | snapshot |
| gRPC server bound and started | drained: no new calls, waiting ones end, then cancelled |
| remoting ports listened on | closed, requests being served get 1 s |
| metrics endpoint | closed |
| port file, boot line | removed |
| compiled code loaded, beside the rest | - |

Ports open once recovery is done. SIGTERM and SIGINT stop it in reverse order.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import ssl
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import structlog
import uvloop
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker_gateway.broker import Broker
from broker_gateway.config import GatewayConfig
from broker_gateway.errors import OptionError, StartError
from broker_gateway.logs import configure_logs
from broker_gateway.metrics import Metrics
from broker_gateway.service.access import Access
from broker_gateway.service.health import HealthService
from broker_gateway.service.log import LogService
from broker_gateway.service.reflection import ReflectionService
from broker_gateway.transport.certificates import server_context, trial_certificate
from broker_gateway.transport.methods import Server
from broker_gateway.transport.remoting.ports import take_ports
from broker_gateway.transport.remoting.server import FrontDoor
from broker_gateway.turn import Turn
from lakebroker_pb.apache.rocketmq.v2 import service_pb2
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_pb.lakebroker.log.v1 import log_pb2
from store.errors import StoreError
from store.flush import PAGE_BYTES
from store.message_store import MessageStore
from store.record import Host

log = structlog.get_logger(__name__)
_LOADING_SWITCH_S = 0.0005


def run(config: GatewayConfig, warnings: Iterable[str] = ()) -> None:
    """Runs the broker until a signal stops it. Raises StartError."""
    configure_logs(config.lake.lake_log_format, config.lake.lake_log_level)
    for warning in warnings:
        log.warning(warning)
    if config.broker.namesrv_addr:
        log.warning("registration with name servers is not built yet; namesrvAddr has no effect")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: GatewayConfig) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stopped)
    async with contextlib.AsyncExitStack() as undo:
        access = Access(config.lake.lake_token_file)
        ports, config = take_ports(config)  # records carry the port
        undo.callback(ports.close)
        store = await asyncio.to_thread(_open_store, config)  # a scan must not hold up signals
        undo.callback(store.close)
        metrics = Metrics(config.broker.broker_cluster_name, config.broker.broker_name)
        broker = Broker(config, store, metrics, access)
        replayed = await broker.start()
        undo.push_async_callback(broker.stop)
        log.info("journal replayed", snapshot_offset=replayed.snapshot_offset, records=replayed.records)
        server, health = _bind(config, broker, LogService(store, access))
        await server.start()
        undo.push_async_callback(server.stop, config.proxy.grpc_shutdown_time_seconds)
        front_door = FrontDoor(config, broker.administration)
        await front_door.start(ports)
        undo.push_async_callback(front_door.stop)
        metrics_port = _serve_metrics(config, broker, store, undo)
        _tune_collector()
        _announce(config, server.port, metrics_port, undo)
        threading.Thread(target=_load_compiled, args=(broker,), name="load-compiled", daemon=True).start()
        await stopped.wait()
        log.info("stopping", broker=config.broker.broker_name)
        health.stopping()
        undo.push_async_callback(broker.drain)  # first of all, beside the server's grace
    log.info("stopped", broker=config.broker.broker_name)


def _tune_collector() -> None:
    """Calls leave hardly any cycles: looking for them every 700 objects costs 6 % of a send."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 20)


def _load_compiled(broker: Broker) -> None:
    """Loads compiled code beside the event loop, which waits as short as can be for this thread meanwhile."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(_LOADING_SWITCH_S)
    try:
        broker.load_compiled()
    except Exception:
        log.exception("compiled code could not be loaded; sends go the slower plain path")
    finally:
        sys.setswitchinterval(before)
    gc.freeze()


def _stop(stopped: asyncio.Event) -> None:
    if stopped.is_set():
        os._exit(1)  # a second signal does not wait for running calls
    stopped.set()


def _open_store(config: GatewayConfig) -> MessageStore:
    options = config.store

    def progress(done: int, total: int) -> None:
        if total > 1 << 30:
            log.info("scanning the log", done_mib=done >> 20, total_mib=total >> 20)

    try:
        store = MessageStore.open(
            options.store_path_root_dir,
            broker=config.broker.broker_name,
            cluster=config.broker.broker_cluster_name,
            store_host=Host(config.broker.broker_ip1, config.broker.listen_port),
            commit_log_paths=[
                Path(each.strip()) for each in options.store_path_commit_log.split(",") if each.strip()
            ],
            segment_size=options.mapped_file_size_commit_log,
            flush=options.flush_disk_type,
            flush_interval_ms=options.flush_interval_commit_log,
            flush_least_pages=options.flush_commit_log_least_pages,
            flush_thorough_ms=options.flush_commit_log_thorough_interval,
            max_message_size=options.max_message_size,
            prefault_bytes=config.lake.lake_prefault_bytes,
            warm_bytes=options.flush_least_pages_when_warm_maped_file * PAGE_BYTES
            if options.warm_maped_file_enable
            else 0,
            index_max_bytes=config.lake.lake_queue_index_max_bytes,
            progress=progress,
        )
    except (StoreError, OSError) as error:
        raise StartError(str(error)) from error
    report = store.recovered
    log.info(
        "log recovered",
        records=report.records,
        scanned_mib=report.bytes_scanned >> 20,
        seconds=round(report.seconds, 3),
        clean=report.clean,
        cut_at=report.cut_at,
        end=store.max_offset,
    )
    for reason in report.unusable:
        log.warning("a file of the queue index was made anew", file=reason)
    for offset, length, reason in report.bad:
        log.error("damage in the log; kept for quarantine", offset=offset, length=length, reason=reason)
    return store


def _bind(config: GatewayConfig, broker: Broker, log_service: LogService) -> tuple[Server, HealthService]:
    address, port = config.proxy.grpc_bind_address, config.proxy.grpc_server_port
    try:
        server = _server(config, broker.turn, address, port)
    except (OSError, RuntimeError) as error:
        raise StartError(
            f"port {port} of {address} cannot be opened ({error}); choose another grpcServerPort"
        ) from error
    services: dict[ServiceDescriptor, object] = {
        service_pb2.DESCRIPTOR.services_by_name["MessagingService"]: broker.messaging,
        admin_pb2.DESCRIPTOR.services_by_name["AdminService"]: broker.admin,
        log_pb2.DESCRIPTOR.services_by_name["LogService"]: log_service,
    }
    names = [descriptor.full_name for descriptor in services]
    health = HealthService(names)
    services[health_pb2.DESCRIPTOR.services_by_name["Health"]] = health
    described = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    services[described] = ReflectionService([*names, "grpc.health.v1.Health", described.full_name])
    for descriptor, implementation in services.items():
        server.bind(descriptor, implementation)
    return server, health


def _server(config: GatewayConfig, turn: Turn, address: str, port: int) -> Server:
    """The transport that was chosen. Raises OptionError, OSError or RuntimeError."""
    tls = _tls(config)
    if config.lake.lake_transport == "grpcio":
        if tls is not None:
            raise OptionError("TLS needs the transport http2; set lakeTransport=http2 or leave TLS out")
        from broker_gateway.transport.grpcio.server import GrpcioServer

        return GrpcioServer(address, port, config.broker.broker_ip1)
    from broker_gateway.transport.http2.server import Http2Server

    return Http2Server(address, port, config.broker.broker_ip1, turn, tls)


def _tls(config: GatewayConfig) -> ssl.SSLContext | None:
    certificate, key = config.proxy.tls_cert_path, config.proxy.tls_key_path
    if (certificate is None) != (key is None):
        missing = "tlsKeyPath" if key is None else "tlsCertPath"
        raise OptionError(f"{missing} is missing; a certificate needs its key")
    if certificate is not None and key is not None:
        return server_context(certificate, key)
    if not config.proxy.tls_test_mode_enable:
        return None
    folder = config.store.store_path_root_dir / "config"
    log.warning("TLS with a certificate made for trials; clients cannot tell this broker from another")
    return server_context(*trial_certificate(folder, config.broker.broker_ip1))


def _serve_metrics(
    config: GatewayConfig, broker: Broker, store: MessageStore, undo: contextlib.AsyncExitStack
) -> int:
    """Opens the metrics endpoint; returns its port, -1 when it is off."""
    broker.metrics.gauges(broker.gauges)
    if config.proxy.metrics_prom_exporter_port < 0:
        return -1
    host, port = config.proxy.metrics_prom_exporter_host, config.proxy.metrics_prom_exporter_port
    try:
        http, _ = broker.metrics.serve(host, port)
    except OSError as error:
        raise StartError(
            f"port {port} of {host} cannot be opened ({error}); choose another metricsPromExporterPort"
        ) from error
    undo.callback(http.server_close)
    undo.callback(http.shutdown)
    return int(http.server_port)


def _announce(
    config: GatewayConfig, grpc_port: int, metrics_port: int, undo: contextlib.AsyncExitStack
) -> None:
    path = config.lake.lake_port_file
    if path is not None:
        staged = Path(f"{path}.tmp")
        staged.write_text(
            json.dumps(
                {
                    "grpc": grpc_port,
                    "metrics": metrics_port,
                    "remoting": config.broker.listen_port,
                    "pid": os.getpid(),
                }
            )
        )
        staged.rename(path)
        undo.callback(path.unlink, missing_ok=True)
    name, ip, port = config.broker.broker_name, config.broker.broker_ip1, config.broker.listen_port
    sys.stdout.write(f"The broker[{name}, {ip}:{port}] boot success. serializeType=JSON\n")
    sys.stdout.flush()
    log.info("serving", grpc_port=grpc_port, metrics_port=metrics_port)
