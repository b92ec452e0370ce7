"""Avro bodies. Arrow has no reader for them: `fastavro` reads one after the other.

| a body begins with | it is of |
|---|---|
| C3 01 and the fingerprint of a schema (single-object encoding) | that schema |
| anything else | the newest schema that reads it to its last byte: a body alone does not say |
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from structured_streaming.typed.avro_schema import AvroSchema
from structured_streaming.typed.declaration import Schema
from structured_streaming.typed.decoded import ANY, Decoded, cut
from structured_streaming.typed.fields import TypedField, joined
from structured_streaming.typed.python_values import PYTHON_BYTES, one_by_one

_MARKER = b"\xc3\x01"
_FINGERPRINT = slice(2, 10)


class AvroBodies:
    """See `Decoder`. Raises SchemaError, LakeError without fastavro."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        self._versions = [(each.version, AvroSchema(each.text)) for each in schemas]
        from fastavro import schemaless_reader

        self._read: Callable[..., Any] = schemaless_reader
        self._by_version = {made[0]: made for made in self._versions}
        self._by_fingerprint = {made[1].fingerprint: made for made in self._versions}
        self.fields: list[TypedField] = []
        for _, schema in self._versions:
            self.fields = joined(self.fields, schema.fields)
        self.left_out = self._versions[-1][1].left_out
        lists = max(schema.bytes_of_lists for _, schema in self._versions)
        self.bytes_of_lists = PYTHON_BYTES + int(lists)

    def decode(self, bodies: pa.BinaryArray, version: int = ANY) -> Decoded:
        """See `Decoder.decode`."""
        return one_by_one(bodies, self.fields, lambda body: self._one(body, version))

    def _one(self, body: bytes, only: int) -> tuple[dict[str, Any] | None, int, str | None]:
        """Value, version, reason."""
        begin, candidates = 0, self._versions[::-1]
        if only != ANY:
            candidates = [self._by_version[only]]
        elif body[:2] == _MARKER and (single := self._by_fingerprint.get(body[_FINGERPRINT])) is not None:
            begin, candidates = _FINGERPRINT.stop, [single]
        reason = ""
        for version, schema in candidates:
            stream = io.BytesIO(body)
            stream.seek(begin)
            try:
                value = self._read(stream, schema.parsed)
                if stream.tell() == len(body):
                    return value, version, None
                failed = f"{len(body) - stream.tell():,} bytes are left behind its fields"
            except Exception as error:  # whatever fastavro meets in bytes of anybody
                failed = f"it is no Avro of the schema: {type(error).__name__}: {error}"
            reason = reason or failed
        return None, 0, cut(reason)
