"""SIGINT and SIGTERM of a serving process: the first stops it in an orderly way, a later one at once."""

from __future__ import annotations

import asyncio
import os
import signal

import structlog

from broker_gateway.clock import monotonic_s

log = structlog.get_logger(__name__)
_ONE_S = 0.5
"""Signals within that time are one: who stops a service may tell both its process group and its processes."""


def stop_at_signals(stopped: asyncio.Event) -> None:
    """Sets `stopped` at the first signal; a later one does not wait for running calls, and ends the process with status 1."""
    first_s = 0.0

    def came() -> None:
        nonlocal first_s
        if not stopped.is_set():
            first_s = monotonic_s()
            stopped.set()
        elif monotonic_s() - first_s > _ONE_S:
            log.warning("a second signal: it ends at once, and nothing that was answered as done is lost")
            os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, came)
