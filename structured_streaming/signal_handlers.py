"""Another handler of SIGINT and SIGTERM for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Within, SIGINT and SIGTERM have this handler. Other threads than the main one get no signals: nothing changes there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt, terminate = (signal.getsignal(number) for number in _NUMBERS)
    try:
        for number in _NUMBERS:
            signal.signal(number, handler)
        yield
    finally:
        try:
            signal.signal(signal.SIGINT, interrupt)
        finally:  # a signal that comes between them raises
            signal.signal(signal.SIGTERM, terminate)
