"""Which files of a table become one.

A file of at least half of the target size stays as it is. Smaller ones that follow each other in time are put together up to
the target size; files of different kinds of keys stay apart, so that a look-up reads those of its kind alone.

Of those that stay, `WINDOW` that follow each other in time are sorted together once (`window_of`), into files with ranges of their
own of the table's order. So a look-up by the first columns of the order opens one file of each such window, and the few that are
newer; every row is written once more for it.

The last, which do not fill a file, become one at every run, with one exception: a file larger than all those behind it
together stays as long as the table may have it, so that a run rewrites no more than what came since.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.staging.table_file import PART
from structured_streaming.stated import extremes

WINDOW = 8
"""Files that are sorted together."""
MOST_ROWS = 8_000_000
"""That one file is made of: what is kept of each row while they are sorted takes memory."""
_KIND = "key_type"
_TIMES = (
    "store_timestamp", "event_timestamp", "commit_timestamp", "minute", "found_timestamp", "change_timestamp",
)  # fmt: skip
"""A table has one of them, or none."""


def allowed(files: Iterable[DataFile], target: int) -> int:
    """How many files a table may have after maintenance: twice those of target size that would hold its bytes."""
    return 2 * max(-(-sum(file.size for file in files) // target), 1)


def window_of(files: Iterable[DataFile], target: int, column: str) -> list[DataFile]:
    """`WINDOW` files of one kind, the oldest, that were not sorted together yet, and of which the ranges of the order's first column
    overlap; none when there are fewer."""
    for kind in _kinds(files, lambda file: file.label == PART and file.size >= target / 2):
        for begin in range(0, len(kind) - WINDOW + 1, WINDOW):
            window = [each.file for each in kind[begin : begin + WINDOW]]
            if _overlap(window, column):
                return window
    return []


def plan(files: Sequence[DataFile], target: int) -> list[list[DataFile]]:
    """Groups of at least two files; each is to become one."""
    groups, tails = [], []
    for kind in _kinds(files, lambda file: file.size < target / 2):
        *full, tail = _filled(kind, target)
        groups += [group for group in full if len(group) > 1]
        tails.append(tail)
    count = len(files) - sum(len(group) - 1 for group in groups + tails)
    room = allowed(files, target) - count
    for tail in tails:
        rest = sorted(tail, key=lambda file: file.size)[:-1]
        if room > 0 and rest and sum(file.size for file in tail) > 2 * sum(file.size for file in rest):
            tail = [file for file in tail if file in rest]
            room -= 1
        if len(tail) > 1:
            groups.append(tail)
    return groups


class _Dated(NamedTuple):
    """A file that may become one with others, by when its rows are of, as texts compare."""

    time: str
    path: str
    rows: int
    file: DataFile


def _overlap(files: Iterable[DataFile], column: str) -> bool:
    """Whether a value may be in several of them."""
    ends = []
    for file in files:
        least, greatest = extremes(file.statistics, column)
        if least is None or greatest is None:
            return True
        ends.append((least, greatest))
    ends.sort()
    return any(before[1] >= after[0] for before, after in itertools.pairwise(ends))


def _kinds(files: Iterable[DataFile], wanted: Callable[[DataFile], bool]) -> list[list[_Dated]]:
    """The `wanted` files, in the order of time, by their label and the kind of keys that they hold; those of several kinds for
    themselves."""
    found: dict[tuple[object, ...], list[_Dated]] = {}
    for file in files:
        if wanted(file):
            stated = file.statistics
            times = (extremes(stated, name)[0] for name in _TIMES)
            time = next((each for each in times if isinstance(each, str)), "")
            dated = _Dated(time, file.path, int(stated.get("numRecords", 0)), file)
            found.setdefault((file.label, *extremes(stated, _KIND)), []).append(dated)
    return [sorted(kind) for kind in found.values()]


def _filled(kind: Iterable[_Dated], target: int) -> list[list[DataFile]]:
    """Files in groups up to the target size, at least one; the last may be less than half of it."""
    groups: list[list[DataFile]] = [[]]
    size = rows = 0
    for small in kind:
        if groups[-1] and (size + small.file.size > target or rows + small.rows > MOST_ROWS):
            groups.append([])
            size = rows = 0
        groups[-1].append(small.file)
        size, rows = size + small.file.size, rows + small.rows
    return groups
