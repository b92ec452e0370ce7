"""The files of a table's mirror, through `storage`: pyiceberg reads and writes them here, and no version is put over another."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV2

from structured_streaming.iceberg.places import METADATA, uri_of
from structured_streaming.storage.folder import Folder

HINT = "version-hint.text"
_VERSION = re.compile(r"v([1-9]\d{0,8})\.metadata\.json")
_POINTED = 100
"""Versions of others that are followed while the hint is written."""


class DamagedError(Exception):
    """A file of a mirror that is not as it was put."""


class MetadataFolder(FileIO):
    """`metadata` in the place of a table's mirror. Calls raise OSError, those that read DamagedError."""

    def __init__(self, place: Folder) -> None:
        super().__init__()
        self.location = uri_of(place)
        self._folder = place.child(METADATA)
        self._uri = f"{self.location}/{METADATA}"
        self._put: list[str] = []

    def uri(self, name: str) -> str:
        """Of a file in it."""
        return f"{self._uri}/{name}"

    def name(self, uri: str) -> str:
        """Of the file in it that has this URI."""
        beginning, _, name = uri.rpartition("/")
        if beginning != self._uri or not name:
            raise DamagedError(f"{uri} is not in {self._uri}")
        return name

    def newest(self) -> int:
        """The number of the newest version; 0 without one."""
        return max(self.versions(), default=0)

    def versions(self) -> dict[int, str]:
        """The names of versions by number."""
        matches = (_VERSION.fullmatch(name) for name in self.names())
        return {int(match[1]): match[0] for match in matches if match}

    def names(self) -> list[str]:
        """Of all files in it."""
        try:
            return self._folder.names()
        except FileNotFoundError:
            return []

    def read(self, version: int) -> TableMetadataV2:
        """A version."""
        found = self._parsed(self._content(version_name(version)))
        if not isinstance(found, TableMetadataV2):
            raise DamagedError(
                f"{version_name(version)} is of Iceberg's format version {found.format_version}"
            )
        return found

    def put(self, version: int, metadata: TableMetadataV2) -> None:
        """Puts a version, durably. Raises FileExistsError when somebody else was first."""
        self._folder.put_if_absent(version_name(version), metadata.model_dump_json().encode())
        self._put = []

    def point_to(self, version: int) -> None:
        """Writes the hint, also of what others have put behind that version."""
        for newest in range(version, version + _POINTED):
            if not self._folder.has(version_name(newest + 1)):
                if self._hint() != str(newest):
                    self._folder.replace(HINT, str(newest).encode())
                if not self._folder.has(version_name(newest + 1)):
                    return

    def lacks(self, sizes: Iterable[tuple[str, int]]) -> str | None:
        """The name of the first of these files that is not there with its size."""
        for name, size in sizes:
            status = self._folder.status(name)
            if status is None or status.size != size:
                return name
        return None

    def older_than(self, name: str, time: float) -> bool:
        """Whether a file is there and was put before that, seconds since the epoch."""
        status = self._folder.status(name)
        return status is not None and status.modified < time

    def make(self) -> None:
        """Makes the folder."""
        self._folder.make()

    def remove(self, names: Iterable[str]) -> None:
        """Removes files."""
        for name in names:
            self._folder.remove(name)

    def remove_written(self) -> None:
        """Removes what was written for a version that somebody else put."""
        self.remove(self._put)
        self._put = []

    def new_input(self, location: str) -> InputFile:
        return _Read(location, self._content(self.name(location)))

    def new_output(self, location: str) -> OutputFile:
        return _Written(location, self)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        uri = location if isinstance(location, str) else location.location
        self._folder.remove(self.name(uri))

    def keep(self, uri: str, content: bytes) -> None:
        """Puts a file, durably."""
        name = self.name(uri)
        self._folder.put_if_absent(name, content)
        self._put.append(name)

    def _hint(self) -> str:
        try:
            return self._folder.read(HINT).decode(errors="replace")
        except FileNotFoundError:
            return ""

    def _content(self, name: str) -> bytes:
        try:
            return self._folder.read(name)
        except FileNotFoundError as error:
            raise DamagedError(f"{name} is not there") from error

    @staticmethod
    def _parsed(content: bytes) -> TableMetadata:
        try:
            return TableMetadataUtil.parse_raw(content.decode())
        except Exception as error:  # pyiceberg and pydantic raise their own kinds
            first = str(error).splitlines()[:1]
            raise DamagedError(f"it is no metadata of an Iceberg table ({''.join(first):.200})") from error


def version_name(version: int) -> str:
    """As Iceberg's Hadoop tables name a version's metadata."""
    return f"v{version}.metadata.json"


class _Read(InputFile):
    """A file whose content is in memory."""

    def __init__(self, location: str, content: bytes) -> None:
        super().__init__(location)
        self._content = content

    def __len__(self) -> int:
        return len(self._content)

    def exists(self) -> bool:
        return True

    def open(self, seekable: bool = True) -> io.BytesIO:
        return io.BytesIO(self._content)


class _Written(OutputFile):
    """A file that is put whole when it is closed."""

    def __init__(self, location: str, folder: MetadataFolder) -> None:
        super().__init__(location)
        self._folder = folder
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        return False

    def to_input_file(self) -> InputFile:
        return self._folder.new_input(self.location)

    def create(self, overwrite: bool = False) -> _Buffer:
        return _Buffer(self)

    def closed(self, content: bytes) -> None:
        """Takes what was written."""
        self._size = len(content)
        self._folder.keep(self.location, content)


class _Buffer(io.BytesIO):
    """What is being written."""

    def __init__(self, file: _Written) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._file.closed(content)
