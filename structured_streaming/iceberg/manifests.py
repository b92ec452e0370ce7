"""The manifests of a snapshot: those of the one before it, of which only those with files that went are written anew.

A manifest with few files is put together with others when there are many of them, so that their number follows the table's
size and not its age.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema

from structured_streaming.iceberg.metadata_folder import DamagedError, MetadataFolder

ENTRIES = 4096
"""In a manifest, about; a MB at most."""
SMALL = 8
"""So many small manifests stay; one is small with less than that part of `ENTRIES`."""
_CODEC: str = "gzip"
_BOUNDS = [
    at for at, field in enumerate(DATA_FILE_TYPE[2].fields) if field.name in ("lower_bounds", "upper_bounds")
]
"""Of Avro, what all readers know."""


@dataclass(slots=True)
class Change:
    """What a snapshot has, and what came and went with it: files, their rows, their bytes."""

    manifests: list[ManifestFile]
    added: list[DataFile] = field(default_factory=list)
    removed: list[DataFile] = field(default_factory=list)

    @property
    def files(self) -> int:
        """In the snapshot."""
        return sum(map(_live, self.manifests))

    @property
    def rows(self) -> int:
        """In the snapshot's files."""
        return sum((each.added_rows_count or 0) + (each.existing_rows_count or 0) for each in self.manifests)


class Manifests:
    """Writes those of the snapshot `snapshot_id`. Calls raise OSError; those that read, DamagedError too."""

    def __init__(self, folder: MetadataFolder, schema: Schema, snapshot_id: int) -> None:
        self._folder = folder
        self._schema = schema
        self.snapshot_id = snapshot_id
        self._name = str(uuid.uuid4())
        self._numbers = itertools.count()

    def change(
        self,
        before: Sequence[ManifestFile],
        gone: set[str] | Callable[[str], bool],
        added: Iterable[DataFile],
    ) -> Change:
        """Files that are `gone` are left out of the manifests `before`; those added are in new ones.

        A set of URIs is looked for in the newest manifests first, until all were found; a function is asked about all.
        """
        carried, written, removed = list[ManifestFile](), list[ManifestFile](), list[DataFile]()
        left = set(gone) if isinstance(gone, set) else None
        for manifest in before:
            if left is not None and not left:
                carried.append(manifest)
                continue
            entries = self.read(manifest)
            is_gone = gone.__contains__ if isinstance(gone, set) else gone
            going = [entry.data_file for entry in entries if is_gone(entry.data_file.file_path)]
            if not going:
                carried.append(manifest)
                continue
            written.append(self._without(entries, {file.file_path for file in going}))
            removed += going
            if left is not None:
                left -= {file.file_path for file in going}
        new = list(added)
        return Change([*self._added(new), *written, *self._together(carried)], new, removed)

    def put_list(self, manifests: list[ManifestFile], parent: int | None, sequence_number: int) -> str:
        """The URI of the list of the manifests, newest first."""
        uri = self._folder.uri(f"snap-{self.snapshot_id}-1-{self._name}.avro")
        output = self._folder.new_output(uri)
        with write_manifest_list(2, output, self.snapshot_id, parent, sequence_number, _CODEC) as writer:  # type: ignore[arg-type]
            writer.add_manifests(manifests)
        return uri

    def _added(self, files: Sequence[DataFile]) -> Iterator[ManifestFile]:
        for at in range(0, len(files), ENTRIES):
            with self._writer() as writer:
                for file in files[at : at + ENTRIES]:
                    entry = ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file
                    )
                    writer.add(entry)
            yield writer.to_manifest_file()

    def _without(self, entries: Iterable[ManifestEntry], gone: set[str]) -> ManifestFile:
        with self._writer() as writer:
            for entry in entries:
                if entry.data_file.file_path in gone:
                    for at in _BOUNDS:  # nobody needs them, and they hold values such as keys
                        entry.data_file[at] = None
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _together(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Manifests of earlier snapshots; of small ones, where there are many, one. Those with no file any more are left out."""
        kept = [manifest for manifest in manifests if _live(manifest)]
        small = [manifest for manifest in kept if _live(manifest) < ENTRIES // SMALL]
        if len(small) <= SMALL:
            return kept
        # before there is a writer: an empty one raises an error of its own in place of what reading raises
        entries = [entry for manifest in small for entry in self.read(manifest)]
        with self._writer() as writer:
            for entry in entries:
                writer.existing(entry)
        return [writer.to_manifest_file(), *(manifest for manifest in kept if manifest not in small)]

    def _writer(self) -> ManifestWriter:
        uri = self._folder.uri(f"{self._name}-m{next(self._numbers)}.avro")
        output = self._folder.new_output(uri)
        return write_manifest(2, UNPARTITIONED_PARTITION_SPEC, self._schema, output, self.snapshot_id, _CODEC)  # type: ignore[arg-type]

    def read(self, manifest: ManifestFile) -> list[ManifestEntry]:
        with reading(self._folder.name(manifest.manifest_path)):
            return manifest.fetch_manifest_entry(self._folder)


def manifests_of(folder: MetadataFolder, uri: str) -> list[ManifestFile]:
    """Those that a list names. Raises DamagedError, OSError."""
    with reading(folder.name(uri)):
        return list(read_manifest_list(folder.new_input(uri)))


@contextlib.contextmanager
def reading(name: str) -> Iterator[None]:
    """What pyiceberg raises for a file that is no Avro as a DamagedError."""
    try:
        yield
    except (OSError, DamagedError):
        raise
    except Exception as error:  # of bytes that are not what they were, anything
        raise DamagedError(f"{name} cannot be read ({error!r:.200})") from error


def _live(manifest: ManifestFile) -> int:
    """Files of the snapshot in a manifest."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
