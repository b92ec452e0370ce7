"""`messageDelayLevel`: the durations of the delay levels, such as `1s 5s 2h`."""

from __future__ import annotations

import re

DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS = 1000
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LEVEL = re.compile(r"(\d{1,9})([smhd])")


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """The duration of each level in ms, level 1 first. Raises ValueError."""
    levels = []
    for each in text.split():
        found = _LEVEL.fullmatch(each)
        if found is None:
            raise ValueError(f"delay level {each!r} is no number with a unit of s, m, h or d, such as 30s")
        levels.append(int(found[1]) * _UNIT_MS[found[2]])
    if not 1 <= len(levels) <= MAX_LEVELS:
        raise ValueError(f"{len(levels)} delay levels, 1 to {MAX_LEVELS} are taken")
    return tuple(levels)


DEFAULT_DELAY_LEVELS_MS = parse_delay_levels(DEFAULT_DELAY_LEVELS)
