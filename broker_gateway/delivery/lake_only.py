"""What a group has not settled of a queue's messages that only the lake has: they were in a log that is gone.

They keep `committed` where it is. A broker that has the lake puts those that had been handed out in flight when it starts, and gives out
the others, those of `spans`, before new messages; without the lake they stay until the group is reset or forgotten.
No IO, no clock.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence, Set
from dataclasses import InitVar, dataclass
from typing import NamedTuple


class LakeMessage(NamedTuple):
    """A message that had been handed out, with its last attempt."""

    queue_offset: int
    attempt: int
    message_id: str


def _ascends(values: Sequence[int]) -> bool:
    return all(before < after for before, after in itertools.pairwise(values))


@dataclass(frozen=True, slots=True)
class LakeOnly:
    """`messages`, by ascending offset, had been handed out; those of `spans`, ranges [start, stop) in ascending order,
    never were. Raises ValueError for what is in no order."""

    messages: tuple[LakeMessage, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    begins_with: InitVar[LakeOnly | None] = None
    """What is known to be in order already: not looked at again."""

    def __post_init__(self, begins_with: LakeOnly | None) -> None:
        message = max(len(begins_with.messages) - 1, 0) if begins_with is not None else 0
        span = max(len(begins_with.spans) - 1, 0) if begins_with is not None else 0
        offsets = [each.queue_offset for each in self.messages[message:]]
        ends = [end for each in self.spans[span:] for end in each]
        if not _ascends(offsets) or not _ascends(ends) or min([*offsets[:1], *ends[:1], 0]) < 0:
            raise ValueError(
                f"queue offsets {offsets[:9]} and ranges {self.spans[span : span + 9]} do not ascend from 0 on"
            )

    def followed_by(self, messages: Iterable[LakeMessage], spans: Iterable[tuple[int, int]]) -> LakeOnly:
        """With further ones behind them. Raises ValueError for what is in no order."""
        return LakeOnly(self.messages + tuple(messages), self.spans + tuple(spans), self)

    @property
    def first(self) -> int:
        """The lowest of their offsets; there must be one."""
        return min(
            [*(each.queue_offset for each in self.messages[:1]), *(start for start, _ in self.spans[:1])]
        )

    @property
    def count(self) -> int:
        """How many messages they are."""
        return len(self.messages) + sum(stop - start for start, stop in self.spans)

    def from_offset(self, offset: int) -> LakeOnly:
        """Those at or behind a queue offset."""
        return LakeOnly(
            tuple(each for each in self.messages if each.queue_offset >= offset),
            tuple((max(start, offset), stop) for start, stop in self.spans if stop > offset),
        )

    def before(self, offset: int) -> LakeOnly:
        """Those below a queue offset."""
        return LakeOnly(
            tuple(each for each in self.messages if each.queue_offset < offset),
            tuple((start, min(stop, offset)) for start, stop in self.spans if start < offset),
        )

    def next_span(self, offset: int) -> tuple[int, int] | None:
        """The first range of messages that never were handed out, from a queue offset on."""
        at = bisect.bisect_right(self.spans, offset, key=lambda span: span[1])
        if at == len(self.spans):
            return None
        start, stop = self.spans[at]
        return max(start, offset), stop

    def read_to(self, offset: int) -> LakeOnly:
        """Without what is below a queue offset of the ranges."""
        return LakeOnly(
            self.messages, tuple((max(start, offset), stop) for start, stop in self.spans if stop > offset)
        )

    def without(self, offsets: Set[int]) -> LakeOnly:
        """Without some of the messages that had been handed out."""
        return LakeOnly(tuple(each for each in self.messages if each.queue_offset not in offsets), self.spans)

    def __contains__(self, offset: int) -> bool:
        at = bisect.bisect_left(self.messages, offset, key=lambda each: each.queue_offset)
        if at < len(self.messages) and self.messages[at].queue_offset == offset:
            return True
        before = bisect.bisect_right(self.spans, offset, key=lambda span: span[0]) - 1
        return before >= 0 and offset < self.spans[before][1]

    def __bool__(self) -> bool:
        return bool(self.messages or self.spans)


NOTHING = LakeOnly()
