"""Which records are erased: of this store, which then hides them, and of logs that only the lake has.

Owns `Batch.erasures`. What is erased stays so; a snapshot has

| records | as long as |
|---|---|
| of this store | a segment has them |
| of other logs, and of segments that went | they are among the latest `MOST_ELSEWHERE`: the lake has the others in its table `erasures` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from broker_gateway.journal.contributor import Contributor, Target
from broker_gateway.journal.record import WITH_ERASURES
from broker_gateway.journal.snapshot import UNITS_A_PART
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.erased import NOTHING, Offsets, among, together
from store.message_store import MessageStore

MOST_ELSEWHERE = 100_000
A_RECORD = 10_000
"""Offsets of an erasure, and of a record of the journal."""


class Log(NamedTuple):
    """Whose records are erased. `own`: they are of this store, whose log may have had another id by then."""

    broker: str
    log_id: str
    own: bool


class Erasures(Contributor):
    """Tells the store what it hides once the journal was replayed. `version` is another one whenever anything is erased."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._offsets: dict[Log, Offsets] = {}
        """Who was erased from last is last."""
        self._asked_ms: dict[Log, int] = {}
        self._new: dict[Log, list[Offsets]] = {}
        self.version = 0

    def are_any(self) -> bool:
        """Whether any record was erased, as far as it need be known."""
        return bool(self._offsets)

    def of(self, log_id: str) -> Offsets:
        """Where erased records of a log of this broker begin, ascending. Any thread may ask."""
        broker = self._store.broker
        # in this order: what moves meanwhile is put among the others before it goes
        own, others = (self._offsets.get(Log(broker, log_id, own), NOTHING) for own in (True, False))
        return together(own, others)

    def not_yet(self, log: Log, offsets: Iterable[int]) -> list[int]:
        """Those of a log's records that are not erased, ascending."""
        asked = np.unique(np.fromiter(offsets, np.int64))
        for own in (False, True):
            asked = asked[~among(self._offsets.get(log._replace(own=own), NOTHING), asked)]
        found: list[int] = asked.tolist()
        return found

    def add(self, erasures: Iterable[pb.Erasure]) -> None:
        """What is in the log takes effect."""
        for each in erasures:
            self._take(each)
        self._settle()

    # ----- what the journal asks for -----

    def fill(self, record: pb.Batch) -> Sequence[pb.Batch]:
        return ()

    def written(self) -> None:
        pass

    def lost(self) -> None:
        pass

    def apply(self, record: pb.Batch) -> None:
        for each in record.erasures:
            self._take(each)

    def replayed(self) -> None:
        self._store.erased.hold(NOTHING)
        self._settle()

    def snapshot(self, target: Target) -> Iterator[int]:
        self._settle()
        told = [(log, offsets, self._asked_ms[log]) for log, offsets in self._offsets.items()]
        for log, offsets, asked_ms in told:
            for first in range(0, len(offsets), A_RECORD):
                some = offsets[first : first + A_RECORD].tolist()
                target.part.version = WITH_ERASURES
                target.part.erasures.append(erasure(log, some, asked_ms))
                yield 1 + len(some) * UNITS_A_PART // A_RECORD

    def _take(self, each: pb.Erasure) -> None:
        log = Log(each.broker, each.log_id, each.own)
        self._new.setdefault(log, []).append(np.array(each.physical_offset, np.int64))
        self._asked_ms[log] = max(each.requested_ms, self._asked_ms.get(log, 0))

    def _settle(self) -> None:
        """Takes what is new, and lets go of what need not be known. Events wait for it, so of what was known before nothing is sorted."""
        for log, parts in self._new.items():
            offsets = np.unique(np.concatenate(parts))
            self._put(log, offsets)
            if log.own:
                self._store.erased.add(offsets)
        self._new.clear()
        least = self._store.min_offset
        for log in [each for each in self._offsets if each.own]:
            offsets = self._offsets[log]
            gone = int(np.searchsorted(offsets, least))
            if gone:
                self._put(log._replace(own=False), offsets[:gone], self._asked_ms[log])
                self._keep(log, offsets[gone:])
        elsewhere = [each for each in self._offsets if not each.own]
        room = MOST_ELSEWHERE
        for log in reversed(elsewhere):
            self._keep(log, self._offsets[log][-room:] if room else NOTHING)
            room -= len(self._offsets.get(log, NOTHING))
        self._store.erased.forget(least)

    def _put(self, log: Log, offsets: Offsets, asked_ms: int = 0) -> None:
        others = {each: known for each, known in self._offsets.items() if each != log}
        self._offsets = {**others, log: together(self._offsets.get(log, NOTHING), offsets)}
        self._asked_ms[log] = max(asked_ms, self._asked_ms.get(log, 0))
        self.version += 1

    def _keep(self, log: Log, offsets: Offsets) -> None:
        if len(offsets):
            self._offsets[log] = offsets
        else:
            del self._offsets[log], self._asked_ms[log]


def erasure(log: Log, offsets: Sequence[int], asked_ms: int) -> pb.Erasure:
    """Of at most `A_RECORD` offsets, ascending."""
    return pb.Erasure(
        broker=log.broker,
        log_id=log.log_id,
        physical_offset=offsets,
        requested_ms=asked_ms,
        own=log.own,
    )


def records(log: Log, offsets: Sequence[int], asked_ms: int) -> list[pb.Batch]:
    """Records of the journal that say that these are erased, for `Journal.append_first`."""
    return [
        pb.Batch(version=WITH_ERASURES, erasures=[erasure(log, offsets[first : first + A_RECORD], asked_ms)])
        for first in range(0, len(offsets), A_RECORD)
    ]
