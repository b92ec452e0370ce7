"""The sidecar as a process: the log service over the store of a real broker, which goes on running.

It opens its port first, so that one that is taken leaves nothing behind; then the store, for reading only. SIGTERM and
SIGINT stop it: no new calls, running ones end, how far the log was served is kept. Statuses as in `startup.py`.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Iterable

import structlog
import uvloop

from broker_gateway.api.grpc.log import LogService
from broker_gateway.app.grpc_server import bind_services, check_transport, opened, operators_certificate
from broker_gateway.auth.grpc_calls import authorized
from broker_gateway.auth.policy import TokenPolicy
from broker_gateway.auth.rpcs import RPCS
from broker_gateway.config.sidecar import SidecarOptions
from broker_gateway.runtime.cleanup import Cleanup
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.runtime.delayed_report import tell_now
from broker_gateway.runtime.errors import HostError, StartError
from broker_gateway.runtime.logs import configure_logs, say
from broker_gateway.runtime.stop_signals import stop_at_signals
from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.remoting.address import is_loopback
from store.errors import StoreError
from store.running.log import RunningLog

log = structlog.get_logger(__name__)
_FILES_BESIDE = 128
"""Open files that are no connections: segments, folders, what Python has open."""
_LEAST_CONNECTIONS = 16


def run(options: SidecarOptions, warnings: Iterable[str] = ()) -> None:
    """Serves until a signal stops it. Raises StartError."""
    configure_logs(options.gateway.lake.lake_log_format, options.gateway.lake.lake_log_level)
    for warning in warnings:
        log.warning(warning)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(options))


async def _serve(options: SidecarOptions) -> None:
    stopped, config = asyncio.Event(), options.gateway
    stop_at_signals(stopped)
    async with Cleanup() as cleanup:
        cleanup.add("telling what is left to log", tell_now)
        policy = TokenPolicy(config.lake.lake_token_file)
        check_transport(config)
        operators_certificate(config)
        slots = ConnectionSlots(_most_connections, config.lake.lake_max_connections_per_address)
        server = opened(config, Tick(), slots)
        try:
            running = await asyncio.to_thread(_open, options)
        except BaseException:
            await server.stop(0)
            raise
        cleanup.add("keeping how far the log was served", running.close)
        cleanup.add("closing the port", lambda: server.stop(config.proxy.grpc_shutdown_time_seconds))
        service = LogService(running, on_threads=True)
        health = bind_services(server, {}, service, authorized(policy, RPCS))
        server.close_idle_after(float(config.server.server_channel_max_idle_time_seconds))
        await server.start()
        _announce(options, running, server.port)
        await stopped.wait()
        health.stopping()
        log.info("stopping", broker=options.broker)
    log.info("stopped", broker=options.broker)


def _open(options: SidecarOptions) -> RunningLog:
    try:
        return RunningLog(
            options.store,
            options.state,
            options.broker,
            options.cluster,
            options.folders,
            options.delay_levels,
        )
    except StoreError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise HostError(
            f"the store {options.store} cannot be read, or the state folder {options.state} not be written: {error}; run the "
            "sidecar as the broker's user, or give a folder to write to with --state"
        ) from error


def _announce(options: SidecarOptions, running: RunningLog, port: int) -> None:
    if running.is_new:
        log.info("the log has no id yet; it gets one, which is kept", folder=str(options.state))
    if options.delay_levels is None:
        log.info(
            "the broker's delay levels are not known, so when messages with one are due is null; give --config or "
            "--message-delay-level"
        )
    proxy = options.gateway.proxy
    if (
        options.gateway.lake.lake_token_file is not None
        and proxy.tls_cert_path is None
        and not is_loopback(proxy.grpc_bind_address)
    ):
        log.warning(
            "readers on other hosts speak TLS alone, and there is no certificate; give --set tlsCertPath=FILE and "
            "--set tlsKeyPath=FILE"
        )
    state = running.describe()
    say(
        f"The sidecar of broker[{options.broker}] serves log {state.log_id}, from {state.start} on, at "
        f"{proxy.grpc_bind_address}:{port}"
    )


def _most_connections() -> int:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(allowed - _FILES_BESIDE, _LEAST_CONNECTIONS)
