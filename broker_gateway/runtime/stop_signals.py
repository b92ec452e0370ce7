"""What stops a serving process: the first SIGINT or SIGTERM in an orderly way, a later one at once; the end of its input."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading

import structlog

from broker_gateway.runtime.clock import monotonic_s

log = structlog.get_logger(__name__)
_ONE_S = 0.5
"""Signals within that time are one: who stops a service may tell both its process group and its processes."""


class Signals:
    """Tells a second signal from the first."""

    def __init__(self) -> None:
        self._first_s: float | None = None

    def again(self) -> bool:
        """Notes a signal; whether one came before it."""
        now = monotonic_s()
        if self._first_s is None:
            self._first_s = now
        return now - self._first_s > _ONE_S


def stop_at_signals(stopped: asyncio.Event) -> None:
    """Sets `stopped` at the first signal; a later one does not wait for running calls, and ends the process with status 1."""
    signals = Signals()

    def came() -> None:
        stopped.set()
        if signals.again():
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
