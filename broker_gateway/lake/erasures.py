"""Which rows of the lake are erased, though they may still be there: those that the broker knows, and those of the table `erasures`.

A purge takes them out of the tables. Until then, and where it was killed, nobody gets them from here. Calls block; any thread may
make them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from broker_gateway.lake.reader import Lake
from store.log.erased import NOTHING, Offsets

if TYPE_CHECKING:
    from structured_streaming.commit.snapshot import Snapshot


class ErasedRows:
    """As they were at an instant."""

    def __init__(self, known: Callable[[str], Offsets], told: dict[str, Offsets]) -> None:
        self._known = known
        self._told = told
        self._logs: dict[str, Offsets] = {}

    def has(self, log_id: str, physical_offset: int) -> bool:
        """Whether the row of a record is erased."""
        offsets = self._logs.get(log_id)
        if offsets is None:
            offsets = np.union1d(self._known(log_id), self._told.get(log_id, NOTHING))
            self._logs[log_id] = offsets
        at = int(np.searchsorted(offsets, physical_offset)) if len(offsets) else 0
        return at < len(offsets) and bool(offsets[at] == physical_offset)


class LakeErasures:
    """Of one broker. `known` gives the erased records of a log of it that the broker itself has heard of."""

    def __init__(
        self, lake: Lake, broker: str, known: Callable[[str], Offsets] = lambda log_id: NOTHING
    ) -> None:
        self._lake = lake
        self._broker = broker
        self._known = known
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._seen: _Seen | None = None

    def now(self) -> ErasedRows:
        """Those of this instant. Raises LakeError, DeltaError, OSError, ArrowException."""
        with self._lock:
            return ErasedRows(self._known, self._told())

    def _told(self) -> dict[str, Offsets]:
        """What the table says, by log id. Only the log of the table is read where it is as it was."""
        from structured_streaming.commit.snapshot import Snapshot
        from structured_streaming.tables import ERASURES

        folder = self._lake.folder.child(ERASURES.name)
        snapshot, self._snapshot = self._snapshot, None  # one that fails is not followed any further
        if snapshot is not None:
            snapshot.follow()
        elif folder.exists():
            snapshot, self._seen = Snapshot(folder), None
        else:
            return {}
        if self._seen is None or self._seen.version != snapshot.version:
            self._seen = _Seen(snapshot.version, self._read(snapshot))
        self._snapshot = snapshot
        return self._seen.offsets

    def _read(self, snapshot: Snapshot) -> dict[str, Offsets]:
        import pyarrow.compute as pc

        from structured_streaming.commit.erasures_log import rows_in
        from structured_streaming.erasures import NAMED
        from structured_streaming.tables import ERASURES

        found: dict[str, list[Offsets]] = {}
        for every in rows_in(self._lake.folder.child(ERASURES.name), snapshot):
            self._lake.go_on()
            rows = every.select(NAMED)
            rows = rows.filter(pc.equal(rows["erased_broker"], self._broker)).drop_null()
            for log_id in pc.unique(rows["erased_log_id"]).to_pylist():
                some = rows.filter(pc.equal(rows["erased_log_id"], log_id))
                found.setdefault(log_id, []).append(some["erased_physical_offset"].to_numpy())
        return {log_id: np.unique(np.concatenate(each)) for log_id, each in found.items()}


class _Seen(NamedTuple):
    version: int
    offsets: dict[str, Offsets]
