"""A typed topic's rows: one for each of its messages, with the fields of its body or the reason why it has none.

A row depends on its message alone. What no format reads is told here, before: a body that is not there, still compressed, or
so large that its row would be.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from structured_streaming.errors import LakeError
from structured_streaming.rows import bodies
from structured_streaming.rows.arrays import table_of, timestamps
from structured_streaming.rows.messages import message_ids
from structured_streaming.rows.records import Records, subset
from structured_streaming.tables import Table
from structured_streaming.typed.declaration import AVRO, JSON, Declaration, UnknownSchemaError, read, written
from structured_streaming.typed.decoded import ANY, Decoded, Decoder, cut
from structured_streaming.typed.fields import OWN, SchemaError, column_name, typed_table
from structured_streaming.typed.registry_frame import NO_FRAME, frame_ids, payloads

LARGEST_BODY = 4 << 20
"""Bytes of a body that has fields; RocketMQ's brokers take no larger messages unless they are told to."""
MOST_MEMORY = 256 << 20
"""Bytes that the fields of one body may take; lists of objects take more than their texts."""
_GROUP_ROWS, _GROUP_BYTES, _GROUP_MEMORY = 4096, 4 << 20, 64 << 20
"""Bodies that are read at a time, by their number, their bytes and the memory that their fields may take."""
_YIELD_BYTES = 32 << 20
_FACTOR = 8
"""Memory for each byte of a body, but for lists."""
PLACE = tuple(column.name for column in OWN if column.name not in ("schema_version", "reason"))
"""Columns that say which message a row is of."""


class TypedTopic:
    """How the rows of a declaration are made. Raises SchemaError, LakeError where its format needs a package."""

    def __init__(self, declared: Declaration) -> None:
        self.declared = declared
        self.decoder = _decoder(declared)
        self.table = typed_table(declared.table, declared.topic, self.decoder.fields)
        self._values = pa.schema([(each.name, each.type) for each in self.decoder.fields])
        self._by_id = {schema.id: schema.version for schema in declared.schemas}
        self._refused = dict(declared.refused)

    def of_records(self, records: Records, *, strict: bool = True) -> Iterator[pa.Table]:
        """The rows of a scan's messages of the topic, a bounded number of bytes at a time. `strict` as of `rows`."""
        scan = records.scan
        rows = np.flatnonzero(records.rows_on(self.declared.topic))
        if not len(rows):
            return
        rows = rows[np.argsort(scan.store_timestamp[rows], kind="stable")]
        some = subset(scan, rows)
        place = {
            **records.place(rows),
            **records.queue(rows),
            "store_timestamp": timestamps(some.store_timestamp),
            "message_id": message_ids(records, some, rows),
        }
        for piece in bodies.slices(some, np.ones(len(rows), dtype=bool)):
            part = {name: values.slice(piece.begin, len(piece.bodies)) for name, values in place.items()}
            yield from self.rows(part, piece.bodies, piece.encodings, strict=strict)

    def rows(
        self,
        place: dict[str, pa.Array],
        found: pa.BinaryArray,
        encodings: pa.StringArray,
        *,
        strict: bool = True,
    ) -> Iterator[pa.Table]:
        """The rows of messages by the columns `PLACE`, their bodies, and what these are still encoded with.

        Bodies of schemas of a registry that are not declared raise UnknownSchemaError where it is `strict`, else they have that as
        their reason.
        """
        held, size = list[pa.Table](), 0
        for begin, end in self._groups(found):
            rows = self._group(
                {name: values.slice(begin, end - begin) for name, values in place.items()},
                found.slice(begin, end - begin),
                encodings.slice(begin, end - begin),
                strict,
            )
            held.append(rows)
            size += rows.nbytes
            if size > _YIELD_BYTES:
                yield pa.concat_tables(held)
                held, size = [], 0
        if held:
            yield pa.concat_tables(held)

    def _groups(self, found: pa.BinaryArray) -> Iterator[tuple[int, int]]:
        lengths = pc.fill_null(pc.binary_length(found), 0).to_numpy().astype(np.int64)
        reached = np.cumsum(np.stack([lengths, self._memory(lengths)]), axis=1)
        begin = 0
        while begin < len(found):
            before = reached[:, begin - 1] if begin else np.zeros(2, dtype=np.int64)
            ends = [
                int(np.searchsorted(row, start + most, side="right"))
                for row, start, most in zip(reached, before, (_GROUP_BYTES, _GROUP_MEMORY), strict=True)
            ]
            end = max(min(*ends, begin + _GROUP_ROWS), begin + 1)
            yield begin, end
            begin = end

    def _memory(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes that the fields of bodies take at most, about."""
        return lengths * (_FACTOR + self.decoder.bytes_of_lists)

    def _group(
        self, place: dict[str, pa.Array], found: pa.BinaryArray, encodings: pa.StringArray, strict: bool
    ) -> pa.Table:
        reasons = self._unread(found, encodings)
        kept = np.flatnonzero([reason is None for reason in reasons])
        read = found.take(pa.array(kept, pa.int64()))
        decoded = self._by_frames(read, strict) if self.declared.registry else self._decoded(read)
        versions = np.zeros(len(found), dtype=np.int32)
        versions[kept] = decoded.versions
        for row, reason in zip(kept.tolist(), decoded.reasons, strict=True):
            reasons[row] = reason
        places = np.zeros(len(found), dtype=np.int64)
        places[kept] = np.arange(len(kept))
        bad = versions == 0
        values = decoded.values.take(pa.array(places, mask=bad))
        columns: dict[str, pa.Array] = {
            **place,
            "schema_version": pa.array(versions, pa.int32(), mask=bad),
            "reason": pa.array(reasons, pa.string()),
            **{column_name(name): values[name].combine_chunks() for name in values.column_names},
        }
        return table_of(self.table, columns)

    def _unread(self, found: pa.BinaryArray, encodings: pa.StringArray) -> list[str | None]:
        """Why bodies are not looked into; None where they are."""
        lengths = pc.fill_null(pc.binary_length(found), -1).to_numpy()
        memory = self._memory(lengths)
        reasons: list[str | None] = [None] * len(found)
        for row in np.flatnonzero(memory > MOST_MEMORY).tolist():
            reasons[row] = (
                f"its fields would take up to {memory[row]:,} bytes, at most {MOST_MEMORY:,} are read"
            )
        for row in np.flatnonzero(lengths > LARGEST_BODY).tolist():
            reasons[row] = f"its body has {lengths[row]:,} bytes, at most {LARGEST_BODY:,} are read"
        encoded = pc.fill_null(pc.not_equal(encodings, bodies.IDENTITY), False)
        for row in np.flatnonzero(encoded.to_numpy(zero_copy_only=False)).tolist():
            reasons[row] = f"the compression of its body ({encodings[row]}) could not be undone"
        for row in np.flatnonzero(lengths < 0).tolist():
            reasons[row] = "the lake has no body of it"
        return reasons

    def _by_frames(self, found: pa.BinaryArray, strict: bool) -> Decoded:
        """Of bodies that begin with the id of their schema."""
        ids = frame_ids(found)
        reasons: list[str | None] = [None] * len(found)
        versions = np.zeros(len(found), dtype=np.int64)
        parts, rows = [self._values.empty_table()], [np.empty(0, dtype=np.int64)]
        unknown = []
        for number in np.unique(ids).tolist():
            its = np.flatnonzero(ids == number)
            if number in self._by_id:
                decoded = self._decoded(payloads(found, its), self._by_id[number])
                versions[its] = decoded.versions
                parts.append(decoded.values)
                rows.append(its)
                of_rows = decoded.reasons
            elif number == NO_FRAME:
                of_rows = ["it does not begin with a 0 and the id of a schema"] * len(its)
            elif number in self._refused or self.declared.refuses_all:
                why = self._refused.get(number, "it is not known, and too many others were not before it")
                of_rows = [cut(f"schema id {number}: {why}")] * len(its)
            elif strict:
                unknown.append(number)
                continue
            else:
                of_rows = [f"schema id {number} is not known yet"] * len(its)
            for row, reason in zip(its.tolist(), of_rows, strict=True):
                reasons[row] = reason
        if unknown:
            raise UnknownSchemaError(self.declared.table, unknown)
        at = np.zeros(len(found), dtype=np.int64)
        at[np.concatenate(rows)] = np.arange(sum(map(len, rows)))
        values = pa.concat_tables(parts).take(pa.array(at, mask=versions == 0))
        return Decoded(values, versions.tolist(), reasons)

    def _decoded(self, found: pa.BinaryArray, version: int = ANY) -> Decoded:
        """In halves where that fails, down to the one that does: it is no reason to stop."""
        if not len(found):
            return Decoded(self._values.empty_table(), [], [])
        try:
            return self.decoder.decode(found, version)
        except Exception as error:
            if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None):
                raise
            if len(found) == 1:
                nothing = pa.table([pa.nulls(1, each.type) for each in self._values], self._values)
                return Decoded(nothing, [0], [cut(f"it cannot be read: {type(error).__name__}: {error}")])
        middle = len(found) // 2
        parts = [self._decoded(found[:middle], version), self._decoded(found[middle:], version)]
        return Decoded(
            pa.concat_tables([part.values for part in parts]),
            [version for part in parts for version in part.versions],
            [reason for part in parts for reason in part.reasons],
        )


@dataclass(frozen=True, slots=True)
class TypedRows:
    """Makes the rows of a declaration in whatever process it was sent to."""

    declared: Declaration

    @property
    def topic(self) -> str:
        return self.declared.topic

    @property
    def table(self) -> Table:
        return typed_topic(self.declared).table

    def rows(self, records: Records) -> Iterator[pa.Table]:
        """See `TypedTopic.of_records`."""
        return typed_topic(self.declared).of_records(records, strict=False)


def typed_topic(declared: Declaration) -> TypedTopic:
    """As `TypedTopic`; made once in a process."""
    return _made(written(declared))


@functools.lru_cache(maxsize=256)
def _made(text: str) -> TypedTopic:
    return TypedTopic(read("the declaration", text))


def _decoder(declared: Declaration) -> Decoder:
    """Raises LakeError for whatever is wrong with the schemas: they are anybody's."""
    try:
        return _of_format(declared)
    except (LakeError, OSError, MemoryError):
        raise
    except Exception as error:
        raise SchemaError(f"the schema cannot be used: {type(error).__name__}: {error}") from error


def _of_format(declared: Declaration) -> Decoder:
    if declared.format == JSON:
        from structured_streaming.typed.json_bodies import JsonBodies

        return JsonBodies(declared.schemas)
    if declared.format == AVRO:
        from structured_streaming.typed.avro_bodies import AvroBodies

        return AvroBodies(declared.schemas)
    from structured_streaming.typed.protobuf_bodies import ProtobufBodies

    return ProtobufBodies(declared.schemas)
