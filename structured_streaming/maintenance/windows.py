"""Columns of a table a bounded number of rows at a time, by ascending offsets.

Files say in their statistics which offsets they hold. A window is read of those alone that may have rows in it, so where
files follow each other in the log, each is read once or twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.maintenance.reading import parts
from structured_streaming.stated import extremes
from structured_streaming.storage.folder import Folder
from structured_streaming.tables import Table

WINDOW_ROWS = 2_000_000
"""About; where rows are spread evenly over the offsets of each file."""
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


def offset_column(table: Table) -> str:
    """The one of the row key's columns that ascends with the log."""
    return next(name for name in table.key if name.endswith("_offset"))


class OffsetFiles:
    """Files of a table in `folder`, by the values of an integer column that they hold."""

    def __init__(self, folder: Folder, files: Sequence[DataFile], schema: pa.Schema, column: str) -> None:
        self._folder = folder
        self._schema = schema
        self._column = column
        self._files = [(file, *self._extent(file)) for file in files]

    def windows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All rows: some columns, with the offset, of ascending ranges of it. Raises FileError."""
        cuts = [_LEAST, *self._cuts(), _GREATEST]
        for begin, end in itertools.pairwise(cuts):
            yield self.between(columns, begin, end if end < _GREATEST else _GREATEST + 1)

    def between(self, columns: Sequence[str], begin: int, end: int) -> pa.Table:
        """Rows of the offsets [begin, end). Raises FileError."""
        wanted = list(dict.fromkeys([*columns, self._column]))
        found = [pa.schema([self._schema.field(name) for name in wanted]).empty_table()]
        for file, least, greatest, _ in self._files:
            if greatest < begin or least >= end:
                continue
            for part in parts(self._folder, file, self._schema):
                rows = part.read(wanted)
                if least < begin or greatest >= end:
                    offsets = rows[self._column]
                    rows = rows.filter(
                        pc.and_(pc.greater_equal(offsets, begin), pc.less_equal(offsets, end - 1))
                    )
                found.append(rows)
        return pa.concat_tables(found)

    def _extent(self, file: DataFile) -> tuple[int, int, int]:
        """Least and greatest offset of a file, as far as they are stated, and its rows."""
        stated = file.statistics
        least, greatest = extremes(stated, self._column)
        return (
            least if isinstance(least, int) else _LEAST,
            greatest if isinstance(greatest, int) else _GREATEST,
            stated.get("numRecords", 0),
        )

    def _cuts(self) -> list[int]:
        """Offsets between which there are about `WINDOW_ROWS` rows, ascending."""
        points = []
        for _, least, greatest, rows in self._files:
            pieces = rows // WINDOW_ROWS + 1
            points += [(least + (greatest - least) * n // pieces, rows // pieces) for n in range(pieces)]
        cuts, total = list[int](), 0
        for offset, rows in sorted(points):
            total += rows
            if total > WINDOW_ROWS and offset > (cuts[-1] if cuts else _LEAST):
                cuts.append(offset)
                total = rows
        return cuts
