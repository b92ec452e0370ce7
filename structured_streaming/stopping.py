"""Signals that stop the reput."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
import time
from typing import Any

_LOOK_S = 0.1
_ONE_SIGNAL_S = 0.5
"""Signals within that time are one: `timeout` and its like tell both a process and its group."""


class Stopping:
    """Whether a signal came, from now on, and its `number`. No event, whose lock a signal could find taken.

    A second signal ends the JVM, which may hang: what waits for it fails then. To other threads than the main one no signal comes.
    """

    def __init__(self) -> None:
        self.number = 0
        self._jvm: subprocess.Popen[Any] | None = None
        self._killed = False
        self._since = 0.0
        self._before: dict[int, Any] = {}
        self._level = logging.getLogger("py4j").level
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._stop)

    def restore(self) -> None:
        """Signals have the handlers again that they had, and py4j logs as before."""
        logging.getLogger("py4j").setLevel(self._level)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_set(self) -> bool:
        return self.number != 0

    def wait(self, seconds: float) -> bool:
        """Waits so long for a signal; whether one came."""
        until = time.monotonic() + seconds
        while not self.number and time.monotonic() < until:
            time.sleep(min(_LOOK_S, seconds))
        return self.is_set()

    def ends(self, jvm: subprocess.Popen[Any] | None) -> None:
        """The JVM to end; none where it is not ours."""
        self._jvm = jvm

    def reap(self) -> None:
        """Waits for the JVM where it was ended."""
        if self._killed and self._jvm is not None:
            self._jvm.wait()

    def _stop(self, number: int, _frame: object) -> None:
        now = time.monotonic()
        if not self.number:
            self.number, self._since = number, now
            # the JVM may have got the signal too, and a call that waits for it would be logged with its trace
            logging.getLogger("py4j").setLevel(logging.CRITICAL)
        elif self._jvm is not None and now - self._since > _ONE_SIGNAL_S:
            self._killed = True
            self._jvm.kill()
