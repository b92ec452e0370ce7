"""What stops a serving process: the first SIGINT or SIGTERM in an orderly way, a later one at once; the end of its input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading

import structlog

from broker_gateway.clock import monotonic_s

log = structlog.get_logger(__name__)
ONE_SIGNAL_S = 0.5
"""Signals within that time are one: who stops a service may tell both its process group and its processes."""


def stop_at_signals(stopped: asyncio.Event) -> None:
    """Sets `stopped` at the first signal; a later one does not wait for running calls, and ends the process with status 1."""
    first_s = 0.0

    def came() -> None:
        nonlocal first_s
        if not first_s:  # the event may be set without a signal
            first_s = monotonic_s()
            stopped.set()
        elif monotonic_s() - first_s > ONE_SIGNAL_S:
            log.warning("a second signal: it ends at once, and nothing that was answered as done is lost")
            os._exit(1)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, came)


def stop_at_end_of_input(stopped: asyncio.Event) -> None:
    """Sets `stopped` when standard input ends, as it does when the process at its other end is gone."""
    loop, given = asyncio.get_running_loop(), sys.stdin.fileno()

    def watch() -> None:
        while os.read(given, 4096):
            pass
        with contextlib.suppress(RuntimeError):  # the loop is closed: it was stopped meanwhile
            loop.call_soon_threadsafe(stopped.set)

    threading.Thread(target=watch, name="end-of-input", daemon=True).start()
