"""Which files of a table become one.

A file of at least half of the target size stays as it is. Smaller ones that follow each other in time are put together up to
the target size; files of different kinds of keys stay apart, so that a look-up reads those of its kind alone.

The last, which do not fill a file, become one at every run, with one exception: a file larger than all those behind it
together stays as long as the table may have it, so that a run rewrites no more than what came since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from structured_streaming.commit.snapshot import DataFile

MOST_ROWS = 8_000_000
"""That one file is made of: what is kept of each row while they are sorted takes memory."""
_KIND = "key_type"
_TIMES = ("store_timestamp", "event_timestamp", "commit_timestamp", "minute", "found_timestamp")
"""Each table has one of them."""


def allowed(files: Iterable[DataFile], target: int) -> int:
    """How many files a table may have after maintenance: twice those of target size that would hold its bytes."""
    return 2 * max(-(-sum(file.size for file in files) // target), 1)


def plan(files: Sequence[DataFile], target: int) -> list[list[DataFile]]:
    """Groups of at least two files; each is to become one."""
    groups, tails = [], []
    for kind in _kinds(files, target):
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


class _Small(NamedTuple):
    """A file that may be put together with others, by when its rows are of, as texts compare."""

    time: str
    path: str
    rows: int
    file: DataFile


def _kinds(files: Iterable[DataFile], target: int) -> list[list[_Small]]:
    """The small files, in the order of time, by the kind of keys that they hold; those of several kinds for themselves."""
    found: dict[tuple[object, object], list[_Small]] = {}
    for file in files:
        if file.size < target / 2:
            stated = file.statistics
            least, greatest = stated.get("minValues", {}), stated.get("maxValues", {})
            time = next((least[name] for name in _TIMES if isinstance(least.get(name), str)), "")
            small = _Small(time, file.path, int(stated.get("numRecords", 0)), file)
            found.setdefault((least.get(_KIND), greatest.get(_KIND)), []).append(small)
    return [sorted(kind) for kind in found.values()]


def _filled(kind: Iterable[_Small], target: int) -> list[list[DataFile]]:
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
