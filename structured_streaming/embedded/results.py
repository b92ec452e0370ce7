"""Rows of a statement as Arrow has them, taken while they are made."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pyarrow as pa

from structured_streaming.embedded.failures import UnexplainedError
from structured_streaming.embedded.running import Running
from structured_streaming.errors import LakeError

_ROWS = 65536
_ROWS_OF_TEXTS = 256
"""Of a batch with values of any length: texts of 4 MiB in all of them stay below what Arrow's offsets can tell."""
_TRIES = 3
"""To learn why a statement failed."""
_FILE_NAMES = re.compile(r"(?<=│) *Filename\(s\): *(?=│)")
_SUMS = ("HUGEINT", "UHUGEINT")
"""DuckDB's `sum` and `count_if` of integers; elsewhere they are BIGINT."""


def taken(
    running: Running, execute: Callable[[], object], until: contextlib.ExitStack
) -> pa.RecordBatchReader:
    """The rows of the statement that `execute` begins; `until` is closed behind the last of them, or when nobody wants
    them any more. Raises LakeError, as the reader does."""
    cursor = running.cursor
    with _explained(running, execute), running.working():
        execute()
        columns = cursor.description or []
        plain = all(str(column[1]) in _OF_ONE_SIZE for column in columns)
        reader = cursor.to_arrow_reader(_ROWS if plain else _ROWS_OF_TEXTS)
        sums = [at for at, column in enumerate(columns) if str(column[1]) in _SUMS]
        schema = _schema(reader.schema, sums)
        first = next(reader, None)

    def rows() -> Iterator[pa.RecordBatch | None]:
        with until:
            batch = None if first is None else _as_integers(first, schema, sums)
            yield None  # taken below: a generator that never began closes nothing
            while batch is not None:
                yield batch
                with _explained(running, execute), running.working():
                    following = next(reader, None)
                batch = None if following is None else _as_integers(following, schema, sums)

    found = rows()
    next(found)
    return pa.RecordBatchReader.from_batches(schema, found)


@contextlib.contextmanager
def _explained(running: Running, execute: Callable[[], object]) -> Iterator[None]:
    """A statement that fails within for a reason that was lost is run again, without keeping its rows, for the reason alone."""
    try:
        yield
    except UnexplainedError:
        for _ in range(_TRIES):
            try:
                with running.working():
                    execute()
                    for _ in running.cursor.to_arrow_reader(_ROWS_OF_TEXTS):
                        pass
            except UnexplainedError:
                continue
            break
        raise


def without_files(rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Of `EXPLAIN ANALYZE`, whose boxes tell where the lake's files are. Raises LakeError."""
    found = rows.read_all()
    for at, name in enumerate(found.schema.names):
        texts = [None if text is None else _boxes_without_files(text) for text in found[name].to_pylist()]
        found = found.set_column(at, found.schema.field(at), pa.array(texts, found.schema.field(at).type))
    return found.to_reader()


def _boxes_without_files(text: str) -> str:
    """Boxes stand beside each other; the names go on in the lines below, up to an empty one or the box's end."""
    lines = text.split("\n")
    below = list[tuple[int, int]]()
    for at, line in enumerate(lines):
        cells = [(begin, end) for begin, end in below if _names(line, begin, end)]
        cells += [(found.start(), found.end()) for found in _FILE_NAMES.finditer(line)]
        for begin, end in cells:
            line = line[:begin] + " " * (end - begin) + line[end:]
        lines[at], below = line, cells
    return "\n".join(lines)


def _names(line: str, begin: int, end: int) -> bool:
    return line[begin - 1 : begin] == line[end : end + 1] == "│" and bool(line[begin:end].strip())


def schema_of(schema: pa.Schema, kinds: list[str]) -> pa.Schema:
    """The schema of such rows, by the engine's schema and types."""
    return _schema(schema, [at for at, kind in enumerate(kinds) if kind in _SUMS])


def pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Parts of a batch, in order, each of a row or of `most_bytes` at most."""
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        if part.num_rows > 1 and part.nbytes > most_bytes:
            half = part.num_rows // 2
            waiting += (part.slice(half), part.slice(0, half))
        elif part.num_rows:
            yield part


_OF_ONE_SIZE = frozenset(
    ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE",
     "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "UUID", *_SUMS)
)  # fmt: skip


def _schema(schema: pa.Schema, sums: list[int]) -> pa.Schema:
    for at in sums:
        schema = schema.set(at, pa.field(schema.field(at).name, pa.int64()))
    return schema


def _as_integers(batch: pa.RecordBatch, schema: pa.Schema, sums: list[int]) -> pa.RecordBatch:
    if not sums:
        return batch
    columns = list(batch.columns)
    for at in sums:
        try:
            columns[at] = columns[at].cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise LakeError(
                f"column {schema.field(at).name} has values beyond BIGINT; ask for it AS VARCHAR or DOUBLE: CAST(… AS VARCHAR)"
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)
