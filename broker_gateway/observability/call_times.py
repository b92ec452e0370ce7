"""How long calls took, as the original's `StoreStatsService` tells it: longest, distribution, percentiles.

Distribution and percentiles are of the last whole minute; before the first one ends there are none.
"""

from __future__ import annotations

import bisect
import itertools

MINUTE_MS = 60_000
_SLACK_MS = 5_000
_RANGES_MS = (0, 9, 49, 99, 199, 499, 999, 1999, 2999, 3999, 4999, 9999)
_RANGE_NAMES = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_STEPS_MS = (
    *range(1, 21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10), *range(250, 501, 50),
    *range(600, 1001, 100), *range(2000, 10_001, 1000),
)  # fmt: skip
"""Upper bounds between which a percentile is found."""


class CallTimes:
    """Whole ms are counted, as in the original. `roll` ends a minute; call it every 10 s or so."""

    def __init__(self) -> None:
        self.longest_ms = 0
        self._began_ms = 0
        self._ranges = [0] * len(_RANGE_NAMES)
        self._steps = [0] * (len(_STEPS_MS) + 1)
        self._last_ranges: list[int] = []
        self._last_steps = [0] * (len(_STEPS_MS) + 1)

    def add(self, seconds: float, times: int) -> None:
        took_ms = int(seconds * 1000)
        if took_ms > self.longest_ms:
            self.longest_ms = took_ms
        self._ranges[bisect.bisect_left(_RANGES_MS, took_ms)] += times
        self._steps[bisect.bisect_left(_STEPS_MS, took_ms)] += times

    def roll(self, now_ms: int) -> None:
        """Begins a new minute if one has passed."""
        if not self._began_ms:
            self._began_ms = now_ms
        elif now_ms - self._began_ms >= MINUTE_MS - _SLACK_MS:
            self._began_ms = now_ms
            self._last_ranges, self._ranges = self._ranges, [0] * len(self._ranges)
            self._last_steps, self._steps = self._steps, [0] * len(self._steps)

    def distribution(self) -> str:
        """`[range]:count ` for each range; `null` without a whole minute, as Java writes nothing."""
        if not self._last_ranges:
            return "null"
        return "".join(
            f"{name}:{count} " for name, count in zip(_RANGE_NAMES, self._last_ranges, strict=True)
        )

    def percentile_ms(self, part: float) -> float:
        """The time that `part` (0.99) of the calls kept within, between two bounds by proportion."""
        place = int(sum(self._last_steps) * part)
        bounds = (0, *_STEPS_MS, _STEPS_MS[-1])
        for (low, high), count in zip(itertools.pairwise(bounds), self._last_steps, strict=True):
            if place <= count:
                return low + (high - low) * place / count if count else float(low)
            place -= count
        return float(_STEPS_MS[-1])
