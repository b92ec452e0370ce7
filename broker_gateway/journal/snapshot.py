"""A complete snapshot of what the journal tells, made in parts of bounded work.

A part says how things are at the moment it is made, and stands in the log at that place. A replay applies it there: it
replaces what changes before it said, and changes behind it apply on top. So parts may be made over many ticks while
everything goes on changing:

| what changes meanwhile                  | how a replay comes to know it |
|-----------------------------------------|-------------------------------|
| what a part to come is about            | by that part                  |
| what a part before was about            | by the change, behind it      |
| what was made after the snapshot began  | by its changes, all behind its beginning |
| what was removed after it began         | by the removal; no later part mentions it |

What there is to tell, contributors know (`contributor.py`).
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from broker_gateway.journal.contributor import Contributor, Target
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb

UNITS_A_PART = 128
"""Work in a part. A unit is a state, a group, a version, or four of what costs less: a queue, a message in flight. A
part stays well under 1 MiB, the least size of a segment."""


@dataclass(frozen=True, slots=True)
class SnapshotPace:
    """When a snapshot is begun: `log_bytes` behind the beginning of the one before, and not before it was at most
    `percent` of the log written since. So it costs in proportion to what happens, however much there is to tell."""

    log_bytes: int
    percent: int = 5

    def due(self, grown: int, last_size: int) -> bool:
        """Whether one is due when the log has grown by so many bytes since the beginning of the last, of `last_size`
        bytes."""
        return grown >= max(self.log_bytes, last_size * 100 // self.percent)


class Snapshot:
    """One snapshot under way. `log_offset` is where a replay begins: the log's end when it was begun."""

    def __init__(self, contributors: Iterable[Contributor], log_offset: int) -> None:
        self.log_offset = log_offset
        self.complete = False
        """Whether the last part has been made."""
        self.size = 0
        """Of the parts made, bytes."""
        self._id = uuid.uuid4().hex
        self._made = 0
        self._target = Target()
        self._steps = chain.from_iterable(each.snapshot(self._target) for each in contributors)

    def next_part(self, units: int = UNITS_A_PART) -> pb.Batch:
        """The next part: what comes behind it in the log applies on top of it."""
        part = self._target.part = pb.Batch()
        while units > 0:
            step = next(self._steps, None)
            if step is None:
                self.complete = True
                break
            units -= step
        self._made += 1
        part.snapshot.CopyFrom(
            pb.SnapshotPart(
                snapshot_id=self._id,
                part=self._made - 1,
                parts=self._made if self.complete else 0,
                log_offset=self.log_offset,
                in_place=True,
            )
        )
        self.size += part.ByteSize()
        return part


def retold(contributors: Iterable[Contributor]) -> list[pb.Batch]:
    """How everything is that the log was not told of, in parts that belong to no snapshot."""
    target = Target()
    parts: list[pb.Batch] = []
    units = 0
    for step in chain.from_iterable(each.retell(target) for each in contributors):
        units += step
        if units >= UNITS_A_PART:
            parts.append(target.part)
            target.part, units = pb.Batch(), 0
    parts.append(target.part)
    for part in parts:
        part.snapshot.in_place = True
    return parts
