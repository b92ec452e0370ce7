"""The name server as a process: signals, boot line, stop."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterable

import structlog
import uvloop

from broker_gateway.nameserver.config import NameServerConfig
from broker_gateway.nameserver.server import NameServer
from broker_gateway.runtime.delayed_report import tell_now
from broker_gateway.runtime.logs import configure_logs, say
from broker_gateway.runtime.stop_signals import stop_at_signals

log = structlog.get_logger(__name__)
_FILES_BESIDE = 64


def run(config: NameServerConfig, warnings: Iterable[str] = ()) -> None:
    """Serves until a signal stops it. Raises StartError."""
    configure_logs(config.lake.lake_log_format, config.lake.lake_log_level)
    for warning in warnings:
        log.warning(warning)
    allow_files(config.lake.lake_max_connections)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


def allow_files(connections: int) -> None:
    """As many open files as there may be connections, as far as the host allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _FILES_BESIDE
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning(
            "the host allows fewer open files than lakeMaxConnections needs; raise the limit (LimitNOFILE= of a systemd "
            "unit, ulimit -Hn of a shell, --ulimit nofile= of a container) or set a smaller lakeMaxConnections",
            allowed=hard,
            needed=wanted,
            lakeMaxConnections=connections,
        )
        wanted = hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(config: NameServerConfig) -> None:
    stopped = asyncio.Event()
    stop_at_signals(stopped)
    server = NameServer(config)
    await server.start()
    try:
        address = f"{config.server.bind_address}:{server.port}"
        say(f"The Name Server boot success. serializeType=JSON, address {address}")
        await stopped.wait()
        log.info("stopping")
    finally:
        await server.stop()
        tell_now()
    log.info("stopped")
