"""What a part of the broker's state has to do to be journaled.

A contributor owns fields of `Batch`; no other one writes or reads them. It tells the journal that it has something to
write (`Journal.noted`), and is asked for it when the tick's record is written:

| the journal | calls |
|---|---|
| writes a record | `fill`, then `written`; or `lost`, when it could not be appended |
| writes again, after one was lost | `fill` and `retell`, then `written` |
| takes a snapshot | `snapshot`, some pieces a tick |
| is replayed | `starts_at`; `apply`, `apply_message` and `apply_marked` in the order of the log; `replayed` |

To add one: a file beside the others, its line in `broker_journal.py`, its name in the layers of `pyproject.toml`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import Record


class Target:
    """The record that is being filled. `part` is another one after each piece: do not keep it."""

    __slots__ = ("part",)

    def __init__(self) -> None:
        self.part = pb.Batch()


class Contributor(ABC):
    """State that the journal keeps. Called on the event loop; at a replay, before that runs."""

    @abstractmethod
    def fill(self, record: pb.Batch) -> Iterable[pb.Batch]:
        """Writes what was noted, as it is now, into the tick's record; returns further records for what does not fit.

        It stays noted until `written` or `lost`.
        """

    @abstractmethod
    def written(self) -> None:
        """What was noted, and what `retell` told, is in the log."""

    @abstractmethod
    def lost(self) -> None:
        """What was noted is not in the log, and is not noted any more: `retell` has to say how it is."""

    @abstractmethod
    def apply(self, record: pb.Batch) -> None:
        """Takes its fields of a record: changes or, when it has `snapshot`, how things are, whatever was known."""

    def snapshot(self, target: Target) -> Iterator[int]:
        """Adds how things are to `target.part`, a piece a step; yields the units of work of each (`UNITS_A_PART`).

        A piece says how things are when it is made: what was removed before is left out, or said to be removed.
        """
        return iter(())

    def retell(self, target: Target) -> Iterator[int]:
        """As `snapshot`, of what was lost alone."""
        return iter(())

    def starts_at(self, snapshot_offset: int) -> int:
        """From where in the log it has to be replayed, when the newest snapshot begins at `snapshot_offset`: there, or
        before, as it knows by itself. Retention asks, too, and keeps the log from there on."""
        return snapshot_offset

    def reads(self, topic: str) -> bool:
        """Whether a replay gives it the messages of a topic, too."""
        return False

    def apply_message(self, message: Record) -> None:
        """Takes a message of a topic that it reads."""
        raise NotImplementedError(f"{type(self).__name__} reads no messages")

    def reads_marked(self) -> bytes:
        """A mark: a replay gives it every record that has it, of whatever topic; empty: none. What has the mark somewhere
        else than where it is meant has to be told apart."""
        return b""

    def apply_marked(self, message: Record) -> None:
        """Takes a record with its mark, before `apply_message` does."""
        raise NotImplementedError(f"{type(self).__name__} reads no marked messages")

    def replayed(self) -> None:  # noqa: B027 - most have nothing left to do
        """The replay has come to the end of the log."""
