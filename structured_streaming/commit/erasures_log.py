"""`erasures` of a lake in a folder: which records its rows name, and rows that are added to it by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import pyarrow as pa

from structured_streaming.commit.snapshot import Snapshot, read_rows
from structured_streaming.commit.table_log import TableLog, VersionTakenError
from structured_streaming.erased import Erased, Log
from structured_streaming.erasures import BY_HAND, Naming
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import ERASURES, TIMESTAMP


class Erasures:
    """`erasures` of a lake, as it was when this was made or followed last. Calls raise LakeError."""

    def __init__(self, lake: Folder) -> None:
        self._folder = lake.child(ERASURES.name)
        self._snapshot = Snapshot(self._folder)
        self._read: tuple[int, Naming] = -1, Naming.nothing()

    def follow(self) -> None:
        """Reads what was committed since."""
        self._snapshot.follow()

    def every(self) -> Erased:
        """The records that rows name."""
        return self._naming().every

    def unsettled(self, settled: Mapping[str, int]) -> Erased:
        """Those of which tables may have rows: see `Upkeep.settled`."""
        return self._naming().unsettled(settled)

    def settling(self, ends: Mapping[Log, int], settled: Mapping[str, int]) -> dict[str, int]:
        """What is to be added to `Upkeep.settled` when of records below these ends, which the lake had before this was followed,
        nothing is left."""
        return self._naming().settling(ends, settled)

    def next_by_hand(self) -> int:
        """See `Naming.next_by_hand`."""
        return self._naming().next_by_hand()

    def _naming(self) -> Naming:
        if self._read[0] != self._snapshot.version:
            self._read = self._snapshot.version, self._rows()
        return self._read[1]

    def _rows(self) -> Naming:
        return Naming(pa.concat_tables([Naming.nothing().rows, *rows_in(self._folder, self._snapshot)]))


def rows_in(folder: Folder, snapshot: Snapshot) -> Iterator[pa.Table]:
    """The rows of `erasures`, which is in `folder`, with the columns that `Naming` has, a row group at a time. Raises LakeError."""
    for rows in read_rows(folder, snapshot, Naming.nothing().rows.schema):
        yield rows.drop_null()  # a row that names no record, which nobody of ours writes, is none


def add_erased(lake: Folder, erased: Erased, at: datetime) -> None:
    """Adds rows that name these records, which were asked for then; none where there are none. Raises LakeError, OSError."""
    if not len(erased):
        return
    log, known = TableLog(lake.child(ERASURES.name), ERASURES.schema), Erasures(lake)
    while True:
        # who commits in between, whose rows this one's have to be behind, has taken the version
        known.follow()
        file = write_file(lake, ERASURES, _rows(erased, at, known.next_by_hand()))
        try:
            log.append([file._asdict()], {})
        except VersionTakenError:
            lake.child(ERASURES.name).remove(file.path)
            log.follow()
        else:
            return


def _rows(erased: Erased, at: datetime, offset: int) -> pa.Table:
    """Rows of `erasures` that no journal has."""
    named = erased.table()
    count = named.num_rows
    columns = {
        "broker": pa.repeat(pa.scalar(BY_HAND[0]), count),
        "log_id": pa.repeat(pa.scalar(BY_HAND[1]), count),
        "physical_offset": pa.repeat(pa.scalar(offset, pa.int64()), count),
        "ordinal": pa.array(range(count)),
        "erased_broker": named["broker"],
        "erased_log_id": named["log_id"],
        "erased_physical_offset": named["physical_offset"],
        "request_timestamp": pa.repeat(pa.scalar(at, TIMESTAMP), count),
    }
    return pa.table([columns[name] for name in ERASURES.schema.names], ERASURES.schema.names).cast(
        ERASURES.schema
    )
