"""The broker's clocks: the one place that knows where the time comes from.

A test may put a source of its own in their place (`replaced`), for the whole process and as long as the context lasts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

LATEST_MS = 253_402_300_799_999
"""The last ms of the year 9999, since the epoch: many a format ends there."""
_wall_ns: Callable[[], int] = time.time_ns
_monotonic_ns: Callable[[], int] = time.monotonic_ns
_monotonic_s: Callable[[], float] = time.monotonic


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return _wall_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since some time; never goes back."""
    return _monotonic_ns() // 1_000_000


def monotonic_s() -> float:
    """Seconds since some time; never goes back."""
    return _monotonic_s()


@contextlib.contextmanager
def replaced(wall_ns: Callable[[], int], monotonic_ns: Callable[[], int]) -> Iterator[None]:
    """All clocks of this process tell these times, ns. Raises RuntimeError while they are replaced already."""
    global _wall_ns, _monotonic_ns, _monotonic_s
    if _wall_ns is not time.time_ns:
        raise RuntimeError("the clocks of this process are replaced already; end that context first")
    _wall_ns, _monotonic_ns, _monotonic_s = wall_ns, monotonic_ns, lambda: monotonic_ns() / 1e9
    try:
        yield
    finally:
        _wall_ns, _monotonic_ns, _monotonic_s = time.time_ns, time.monotonic_ns, time.monotonic
