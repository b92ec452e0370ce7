"""Which segments may go, and when sends are refused: RocketMQ's rules. No IO but looking at disks.

| fill of the disk | then |
|---|---|
| up to `max_used` | segments older than `reserved_s` go, in the hours of `hours` |
| above it | those go at any hour |
| above `force` | the oldest go, however young they are |
| above `refuse` | that, and sends are refused until it is below again |

Never goes the segment being written, one behind `keep_from`, or one behind a segment that stays.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Rules:
    """Shares of a disk are 0 to 1; `hours` are of the local day; `at_a_time` segments go in one look."""

    reserved_s: float = 72 * 3600.0
    hours: frozenset[int] = frozenset({4})
    max_used: float = 0.75
    force: float = 0.85
    refuse: float = 0.90
    forcibly: bool = True
    at_a_time: int = 10


class Candidate(NamedTuple):
    """A segment: its bounds and how long ago it was last written, s."""

    start: int
    end: int
    age_s: float


class Disk(NamedTuple):
    """A folder of the log and how full its disk is."""

    folder: Path
    used: float


def least_full(folders: Iterable[Path]) -> Disk:
    """The folder with the most room. Raises OSError."""
    disks = []
    for folder in folders:
        usage = shutil.disk_usage(folder)
        disks.append(Disk(folder, usage.used / (usage.used + usage.free)))
    return min(disks, key=lambda disk: disk.used)


def choose(
    rules: Rules,
    segments: Sequence[Candidate],
    used: float,
    hour: int,
    keep_from: int,
    *,
    by_hand: bool = False,
) -> int:
    """How many of the segments, ascending, the last one being written, may go now."""
    if not (hour in rules.hours or used > rules.max_used or by_hand):
        return 0
    at_once = rules.forcibly and used > rules.force
    count = 0
    for segment in segments[:-1][: rules.at_a_time]:
        if segment.end > keep_from or not (at_once or segment.age_s > rules.reserved_s):
            break
        count += 1
    return count


def refusal(rules: Rules, disk: Disk) -> str | None:
    """Why sends are refused; None when they are not."""
    if disk.used <= rules.refuse:
        return None
    return (
        f"the disk of {disk.folder} is {disk.used:.0%} full, above {rules.refuse:.0%} (diskSpaceWarningLevelRatio) "
        "nothing is taken: make room, or lower fileReservedTime"
    )
