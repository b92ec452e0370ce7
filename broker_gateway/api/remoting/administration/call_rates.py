"""Calls a second over 10 s, a minute and ten minutes: `putTps` and its like in the runtime info.

The original leaves a rate out that it is too young for, and tools split the text at blanks; here it is over what there is.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

_PERIODS = (1, 6, 60)
"""In samples, of 10 s each."""


class Counts(NamedTuple):
    """Since the start: messages stored, receives with and without messages, messages handed out."""

    put: int = 0
    found: int = 0
    missed: int = 0
    transferred: int = 0


class CallRates:
    """`sample` is called every 10 s or so, with the time by a clock that never goes back."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, Counts]] = deque(maxlen=_PERIODS[-1] + 1)

    def sample(self, now_ms: int, counts: Counts) -> None:
        self._samples.append((now_ms, counts))

    def text(self, *names: str) -> str:
        """Three rates of the sum of these counts, with single blanks between."""
        return " ".join(str(sum((self._rate(name, period) for name in names), 0.0)) for period in _PERIODS)

    def _rate(self, name: str, period: int) -> float:
        if len(self._samples) < 2:
            return 0.0
        begin_ms, first = self._samples[max(len(self._samples) - 1 - period, 0)]
        end_ms, last = self._samples[-1]
        count: int = getattr(last, name) - getattr(first, name)
        return count * 1000 / max(end_ms - begin_ms, 1)
