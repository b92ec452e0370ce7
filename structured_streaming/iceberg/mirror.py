"""A table's mirror is brought to a version of the Delta table, by one new version of its own.

| step | killed behind it |
|---|---|
| manifests with the files that came, and those with files that went; their list | files that no version names; they go later |
| `vN.metadata.json`, where there is none of that number | the new version is there; the hint names the one before, which is whole |
| the hint | nothing is left to do |
| files that no version of the last hour names are removed | the next time removes the rest |

Several at once: who finds its number taken looks at the other's version. One that shows a later version of the table stays.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import MetadataLogEntry, Operation, SnapshotLogEntry, Summary
from pyiceberg.table.snapshots import Snapshot as MirrorSnapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from structured_streaming.commit.snapshot import Snapshot
from structured_streaming.errors import LakeError
from structured_streaming.iceberg.data_files import Entries
from structured_streaming.iceberg.manifests import Change, Manifests, manifests_of
from structured_streaming.iceberg.metadata_folder import HINT, DamagedError, MetadataFolder, version_name
from structured_streaming.iceberg.places import (
    MIRROR,
    NAMESPACE,
    check_mirrorable,
    table_mirror,
    uri_of,
)
from structured_streaming.iceberg.report import MirrorReport, NoMirrorError
from structured_streaming.iceberg.schemas import grew_from, iceberg_schema, name_mapping
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.local import SCRATCH_PREFIX

KEPT_S = 3600
"""How long a snapshot is kept, and metadata that no version names any more; a vacuum keeps files that went no less."""
_MARGIN_S = 60
"""By which clocks of machines may differ."""
TIDIED = 16
"""Every so many versions, what nobody needs is looked for."""
_TRIES = 20
_VERSION, _TABLE, _NUMBER = "lakebroker.delta_version", "lakebroker.delta_table", "lakebroker.mirror_version"
_NAME_MAPPING, _GC = "schema.name-mapping.default", "gc.enabled"
_LAST_PARTITION_ID = 999
"""Of a table without partitions."""


class LakeMirror:
    """The mirror of a lake. Raises LakeError where there can be none."""

    def __init__(self, lake: Folder) -> None:
        check_mirrorable(lake)
        self._lake = lake

    def update(self, table: str, snapshot: Snapshot, read_at: float) -> MirrorReport:
        """Has a table's mirror show the version `snapshot`, which was the newest at `read_at` (seconds since the epoch), or a
        later one that another process put. Raises NoMirrorError, LakeError, OSError."""
        return _Update(self._lake, table, snapshot, read_at).run()

    def renew(self, table: str, snapshot: Snapshot, read_at: float, why: str) -> MirrorReport:
        """As `update`, all of it anew, and nothing of the versions before is left: statistics in them may hold values of rows
        that are to be nowhere any more. Where another process put a later version, the mirror shows the newest one."""
        return _Update(self._lake, table, snapshot, read_at, why).run()

    def has(self, table: str) -> bool:
        """Whether the table has a mirror, of whatever state. Raises OSError."""
        return table_mirror(self._lake, table).exists()

    def remove_others(self, tables: Collection[str]) -> None:
        """Removes what there is of tables that are none of these. Raises OSError."""
        folder = self._lake.child(MIRROR).child(NAMESPACE)
        for name in folder.names() if folder.exists() else ():
            if name not in tables and not name.startswith(SCRATCH_PREFIX):
                folder.child(name).remove_all()

    def remove(self, table: str) -> bool:
        """Whether the table had a mirror. Raises OSError."""
        there = self.has(table)
        if there:
            table_mirror(self._lake, table).remove_all()
        return there


class _Base(NamedTuple):
    """The newest version of a mirror, `number` 0 where there is none; `anew`: why nothing of it can be used, "" where it can.

    `former` is its metadata, whether it can be used or not.
    """

    number: int
    former: TableMetadataV2 | None
    manifests: Sequence[ManifestFile]
    anew: str

    def given_up(self, why: str) -> _Base:
        """The same, of which nothing is used."""
        return self._replace(manifests=(), anew=why)

    @property
    def metadata(self) -> TableMetadataV2 | None:
        """None where the mirror is made anew."""
        return None if self.anew else self.former

    @property
    def shown(self) -> int:
        """The version of the Delta table; -1 where the mirror is made anew."""
        return int(self.metadata.properties[_VERSION]) if self.metadata else -1

    @property
    def snapshots(self) -> list[MirrorSnapshot]:
        """That readers may ask for; none where the mirror is made anew."""
        return self.metadata.snapshots if self.metadata else []


class _Update:
    """A table's turn."""

    def __init__(
        self, lake: Folder, table: str, snapshot: Snapshot, read_at: float, renewed: str = ""
    ) -> None:
        self._renewed = renewed
        self._table = lake.child(table)
        self._uri = uri_of(self._table)
        self._snapshot = snapshot
        self._read_at = read_at
        self._folder = MetadataFolder(table_mirror(lake, table))

    def run(self) -> MirrorReport:
        if outside := next((file.path for file in self._snapshot.files.values() if file.is_elsewhere), None):
            raise NoMirrorError(f"its file {outside} is outside of the table's folder")
        self._folder.make()
        for _ in range(_TRIES):
            base = self._base()
            if base.shown > self._snapshot.version and not self._follow(base.shown):
                base = base.given_up(f"the table went back from its version {base.shown:,}")
            if base.shown > self._snapshot.version:
                return self._as_it_is(base)
            if self._renewed and not base.anew:
                base = base.given_up(self._renewed)
            try:
                return self._next(base)
            except FileExistsError:
                self._folder.remove_written()
        raise LakeError(
            f"the Iceberg mirror of {self._table}: others put {_TRIES} versions meanwhile; run one maintenance"
        )

    def _follow(self, shown: int) -> bool:
        """Whether the table has the version that its mirror shows, later than the one that was given. What is renewed follows: what
        another process put was made of the manifests that have to go."""
        read_at = time.time()
        newest = Snapshot(self._table)
        if newest.version < shown:
            return False
        if self._renewed:
            self._snapshot, self._read_at = newest, read_at
        return True

    def _base(self) -> _Base:
        number = self._folder.newest()
        if not number:
            return _Base(0, None, (), "it is the first")
        former = None
        try:
            former = self._folder.read(number)
            snapshot = self._checked(former, number)
            manifests = manifests_of(self._folder, snapshot.manifest_list)
            sizes = ((self._folder.name(each.manifest_path), each.manifest_length) for each in manifests)
            if lost := self._folder.lacks(sizes):
                raise DamagedError(f"{lost} is not there as it was put")
        except DamagedError as error:
            return _Base(number, former, (), str(error))
        return _Base(number, former, manifests, "")

    def _checked(self, metadata: TableMetadataV2, number: int) -> MirrorSnapshot:
        """The newest snapshot of a version that is ours, and this table's, here."""
        its, snapshot = metadata.properties, metadata.current_snapshot()
        if metadata.location != self._folder.location:
            raise DamagedError(f"the lake was moved or copied, its mirror was made for {metadata.location}")
        if its.get(_NUMBER) != str(number) or snapshot is None or not its.get(_VERSION, "").isdecimal():
            raise DamagedError(f"{version_name(number)} is somebody else's")
        if its.get(_TABLE) != self._snapshot.table_id:
            raise DamagedError("the table is another one")
        return snapshot

    def _as_it_is(self, base: _Base) -> MirrorReport:
        self._folder.point_to(base.number)
        return self._report(base, 0, 0)

    def _report(self, base: _Base, added: int, removed: int, anew: str = "") -> MirrorReport:
        assert base.former is not None
        snapshot = base.former.current_snapshot_id
        assert snapshot is not None
        version = int(base.former.properties[_VERSION])
        return MirrorReport(snapshot, base.number, version, added, removed, anew)

    def _next(self, base: _Base) -> MirrorReport:
        """Puts the next version, where there is a difference. Raises FileExistsError when somebody else was first."""
        now = time.time()
        known = base.metadata.schema() if base.metadata else None
        schema = self._schema(base, known)
        if known is not None and not grew_from(schema, known):
            return self._next(base.given_up("its columns were changed"))
        kept, is_same = self._kept(base, now), known is not None and schema.schema_id == known.schema_id
        is_shown = is_same and base.shown == self._snapshot.version
        if is_shown and len(kept) == len(base.snapshots):
            return self._as_it_is(base)
        former = self._folder.names() if self._renewed else []
        added = removed = 0
        if not is_shown:
            number = base.former.new_snapshot_id() if base.former else uuid.uuid4().int >> 66
            manifests = Manifests(self._folder, schema, number)
            try:
                change = self._change(manifests, base, Entries(self._table, self._uri, schema))
            except DamagedError as error:  # a manifest that had to be read
                self._folder.remove_written()
                return self._next(base.given_up(str(error)))
            added, removed = len(change.added), len(change.removed)
            if added or removed or not is_same:
                kept.append(self._put_snapshot(base, schema, manifests, change))
        metadata = self._metadata(base, schema, kept, now)
        put = _Base(base.number + 1, metadata, (), "")
        self._folder.put(put.number, metadata)
        if base.anew:
            self._folder.remove([f".{HINT}.crc"])  # Hadoop's, of a hint that a client put
        self._folder.point_to(put.number)
        if self._renewed:
            self._folder.remove(filter(_is_ours, former))
        elif base.anew or put.number % TIDIED == 0:
            self._tidy(metadata, put.number, now)
        return self._report(put, added, removed, base.anew)

    def _kept(self, base: _Base, now: float) -> list[MirrorSnapshot]:
        """The snapshots that stay, the newest last."""
        if base.metadata is None:
            return []
        current, since = base.metadata.current_snapshot_id, _ms(now - KEPT_S + _MARGIN_S)
        return [
            each
            for each in base.metadata.snapshots
            if each.snapshot_id == current or each.timestamp_ms > since
        ]

    def _schema(self, base: _Base, known: Schema | None) -> Schema:
        """The table's columns; those of the mirror where they are the same."""
        last_id = base.metadata.last_column_id if base.metadata else 0
        numbers = [each.schema_id for each in base.metadata.schemas] if base.metadata else []
        schema = iceberg_schema(self._snapshot.schema_json, known, last_id, max(numbers, default=-1) + 1)
        return known if known is not None and schema.fields == known.fields else schema

    def _put_snapshot(
        self, base: _Base, schema: Schema, manifests: Manifests, change: Change
    ) -> MirrorSnapshot:
        parent = base.metadata.current_snapshot_id if base.metadata else None
        sequence_number = (base.former.last_sequence_number if base.former else 0) + 1
        return MirrorSnapshot(
            snapshot_id=manifests.snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=sequence_number,
            timestamp_ms=max(_ms(self._read_at), _updated(base) + 1),
            manifest_list=manifests.put_list(change.manifests, parent, sequence_number),
            summary=self._summary(change),
            schema_id=schema.schema_id,
        )

    def _change(self, manifests: Manifests, base: _Base, entries: Entries) -> Change:
        """By the commits since, where they tell all of it; else by comparing all files."""
        files = self._snapshot.files
        if not base.anew and (changed := self._snapshot.changed_since(base.shown)) is not None:
            gone = {f"{self._uri}/{unquote(path)}" for path in changed.gone}
            change = manifests.change(base.manifests, gone, map(entries.entry, changed.added))
            if change.files == len(files):
                return change
            self._folder.remove_written()
        wanted, there = {f"{self._uri}/{file.name}": file for file in files.values()}, set[str]()

        def is_gone(uri: str) -> bool:
            there.add(uri)
            return uri not in wanted

        # taken when all manifests were read
        missing = (entries.entry(file) for uri, file in wanted.items() if uri not in there)
        change = manifests.change(base.manifests, is_gone, missing)
        if change.files != len(files):
            raise DamagedError("its manifests name a file twice")
        return change

    def _summary(self, change: Change) -> Summary:
        operation = Operation.APPEND
        if change.removed:
            operation = Operation.OVERWRITE if change.added else Operation.DELETE
        counts = {
            "added-data-files": len(change.added),
            "deleted-data-files": len(change.removed),
            "added-records": sum(file.record_count for file in change.added),
            "deleted-records": sum(file.record_count for file in change.removed),
            "added-files-size": sum(file.file_size_in_bytes for file in change.added),
            "removed-files-size": sum(file.file_size_in_bytes for file in change.removed),
            "total-data-files": change.files,
            "total-records": change.rows,
            "total-files-size": sum(file.size for file in self._snapshot.files.values()),
            "total-delete-files": 0,
            "total-position-deletes": 0,
            "total-equality-deletes": 0,
            _VERSION: self._snapshot.version,
        }
        return Summary(operation, **{name: str(count) for name, count in counts.items()})

    def _metadata(
        self, base: _Base, schema: Schema, kept: list[MirrorSnapshot], now: float
    ) -> TableMetadataV2:
        before = base.metadata
        is_here = base.former is not None and base.former.location == self._folder.location
        used = {each.schema_id for each in kept} | {schema.schema_id}
        schemas = [each for each in before.schemas if each.schema_id in used] if before else []
        if schema.schema_id not in {each.schema_id for each in schemas}:
            schemas.append(schema)
        return TableMetadataV2(
            location=self._folder.location,
            table_uuid=base.former.table_uuid if base.former and is_here else uuid.uuid4(),
            last_sequence_number=max(each.sequence_number or 0 for each in kept),
            last_updated_ms=max(_ms(now), _updated(base) + 1),
            last_column_id=max(schema.highest_field_id, before.last_column_id if before else 0),
            schemas=schemas,
            current_schema_id=schema.schema_id,
            partition_specs=[UNPARTITIONED_PARTITION_SPEC],
            default_spec_id=UNPARTITIONED_PARTITION_SPEC.spec_id,
            last_partition_id=_LAST_PARTITION_ID,
            properties={
                _NAME_MAPPING: name_mapping(schema),
                _GC: "false",
                _TABLE: self._snapshot.table_id,
                _VERSION: str(self._snapshot.version),
                _NUMBER: str(base.number + 1),
            },
            current_snapshot_id=kept[-1].snapshot_id,
            snapshots=kept,
            snapshot_log=[
                SnapshotLogEntry(snapshot_id=each.snapshot_id, timestamp_ms=each.timestamp_ms)
                for each in kept
            ],
            metadata_log=self._metadata_log(base, now) if is_here else [],
            sort_orders=[UNSORTED_SORT_ORDER],
            default_sort_order_id=UNSORTED_SORT_ORDER.order_id,
        )

    def _metadata_log(self, base: _Base, now: float) -> list[MetadataLogEntry]:
        """The versions that were the newest within the last hour."""
        assert base.former is not None
        newest = MetadataLogEntry(
            metadata_file=self._folder.uri(version_name(base.number)),
            timestamp_ms=base.former.last_updated_ms,
        )
        log = [*base.former.metadata_log, newest]
        until = [*(each.timestamp_ms for each in log[1:]), _ms(now)]
        return [each for each, end in zip(log, until, strict=True) if end > _ms(now - KEPT_S)]

    def _tidy(self, metadata: TableMetadataV2, number: int, now: float) -> None:
        """Removes files that no version names which was the newest within the last hour, and that are older themselves:
        younger ones may be of a version that is being made.

        Snapshots of those versions are the oldest one's, and younger ones, which the newest version has too.
        """
        logged = [each.metadata_file.rpartition("/")[2] for each in metadata.metadata_log]
        named = {version_name(number), *logged, *self._named(metadata.snapshots)}
        for name in logged[:1]:
            with contextlib.suppress(DamagedError):  # it names nothing any more
                oldest = self._folder.read(int(name[1:].partition(".")[0]))
                known = {each.snapshot_id for each in metadata.snapshots}
                named |= self._named([each for each in oldest.snapshots if each.snapshot_id not in known])
        self._folder.remove(
            name
            for name in self._folder.names()
            if name not in named and _is_ours(name) and self._folder.older_than(name, now - KEPT_S)
        )

    def _named(self, snapshots: Sequence[MirrorSnapshot]) -> set[str]:
        """The files of metadata that snapshots name; none of those that cannot be read any more."""
        names = set[str]()
        for each in snapshots:
            with contextlib.suppress(DamagedError):
                names.add(self._folder.name(each.manifest_list))
                names |= {
                    self._folder.name(one.manifest_path)
                    for one in manifests_of(self._folder, each.manifest_list)
                }
        return names


def _is_ours(name: str) -> bool:
    """Whether a file is of a kind that is put here."""
    return name.endswith((".avro", ".metadata.json")) or name.startswith(SCRATCH_PREFIX)


def _updated(base: _Base) -> int:
    """When the version was made, ms since the epoch."""
    return base.former.last_updated_ms if base.former else 0


def _ms(time_s: float) -> int:
    return int(time_s * 1000)
