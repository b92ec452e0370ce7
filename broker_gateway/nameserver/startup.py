"""The name server as a process: signals, boot line, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable

import structlog
import uvloop

from broker_gateway.logs import configure_logs
from broker_gateway.nameserver.config import NameServerConfig
from broker_gateway.nameserver.server import NameServer

log = structlog.get_logger(__name__)


def run(config: NameServerConfig, warnings: Iterable[str] = ()) -> None:
    """Serves until a signal stops it. Raises StartError."""
    configure_logs(config.lake.lake_log_format, config.lake.lake_log_level)
    for warning in warnings:
        log.warning(warning)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config))


async def _serve(config: NameServerConfig) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopped)
    server = NameServer(config)
    await server.start()
    try:
        address = f"{config.server.bind_address}:{server.port}"
        sys.stdout.write(f"The Name Server boot success. serializeType=JSON, address {address}\n")
        sys.stdout.flush()
        await stopped.wait()
        log.info("stopping")
    finally:
        await server.stop()
    log.info("stopped")


def _stop(stopped: asyncio.Event) -> None:
    if stopped.is_set():
        os._exit(1)  # a second signal does not wait for running requests
    stopped.set()
