"""Where a broker's queues end in the lake, whichever log their records were in. `deltalake` and
`pyarrow` are loaded by the first look."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from broker_gateway.lake.reader import Lake, LakeUnreachableError
from structured_streaming.errors import LakeError
from structured_streaming.storage.folder import Folder

if TYPE_CHECKING:
    import pyarrow as pa

    from structured_streaming.tables import Table

_QUEUE = ("topic", "queue_id")


def queue_ends(lake: Lake, broker: str) -> dict[tuple[str, int], int]:
    """The queue offset behind the highest one that a lake has, by topic and queue id of the broker.

    Of every log, above the progress too. Reads a row group at a time; blocks, for as long as the broker's rows are
    many. A place without a lake has none. Raises LakeUnreachableError,
    LakeReadStoppedError.
    """
    from deltalake.exceptions import DeltaError

    ends = dict[tuple[str, int], int]()
    place = lake.folder
    try:
        for table in tables_of_offsets(lake.folder, broker):
            place = lake.folder.child(table.name)
            for topic, queue_id, last in _highest(place, table, broker):
                lake.go_on()
                ends[topic, queue_id] = max(ends.get((topic, queue_id), 0), last + 1)
    except (DeltaError, LakeError, OSError) as error:
        raise LakeUnreachableError(f"{place}: {error}") from error
    return ends


def tables_of_offsets(lake: Folder, broker: str) -> Iterator[Table]:
    """Those that have the queue offsets of a broker's records: two more where `consume_queue` was left out for a time. It is
    the first that a batch is committed to. Raises DeltaError, LakeError, OSError.
    """
    from structured_streaming.tables import CONSUME_QUEUE, MESSAGE_INDEX, MESSAGES, REPUT_PROGRESS

    for table in (CONSUME_QUEUE, REPUT_PROGRESS):
        if not lake.child(table.name).exists():
            return
    yield CONSUME_QUEUE
    if _left_out(lake.child(REPUT_PROGRESS.name), broker):
        yield from (table for table in (MESSAGES, MESSAGE_INDEX) if lake.child(table.name).exists())


def _left_out(progress: Folder, broker: str) -> bool:
    import pyarrow.compute as pc

    from structured_streaming.commit.progress_rows import names_table
    from structured_streaming.tables import CONSUME_QUEUE, REPUT_PROGRESS

    for rows in _row_groups(progress, REPUT_PROGRESS, broker, ("table_versions",)):
        stated = rows["table_versions"].filter(pc.is_valid(rows["table_versions"]))
        if not all(names_table(chunk, CONSUME_QUEUE.name).all() for chunk in stated.chunks):
            return True
    return False


def _highest(folder: Folder, table: Table, broker: str) -> Iterator[tuple[str, int, int]]:
    """Topic, queue id and highest queue offset, of each queue in each row group."""
    for rows in _row_groups(folder, table, broker, (*_QUEUE, "queue_offset")):
        found = rows.group_by(_QUEUE, use_threads=False).aggregate([("queue_offset", "max")])
        columns = (found[name].to_pylist() for name in (*_QUEUE, "queue_offset_max"))
        for topic, queue_id, last in zip(*columns, strict=True):
            if topic is not None and queue_id is not None and last is not None:
                yield topic, queue_id, last


def _row_groups(folder: Folder, table: Table, broker: str, columns: tuple[str, ...]) -> Iterator[pa.Table]:
    """Rows of a broker, of one row group after the other; none of files that say that they have none of it."""
    import pyarrow.compute as pc

    from structured_streaming.commit.snapshot import Snapshot
    from structured_streaming.maintenance.reading import parts

    snapshot = Snapshot(folder)
    for file in snapshot.files.values():
        if not file.may_hold("broker", broker, broker):
            continue
        for part in parts(folder, file, table.schema):
            rows = part.read(("broker", *columns))
            yield rows.filter(pc.equal(rows["broker"], broker))
