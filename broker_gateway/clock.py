"""The broker's clocks."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since some time; never goes back."""
    return time.monotonic_ns() // 1_000_000
