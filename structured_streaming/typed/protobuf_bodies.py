"""Protobuf bodies. Arrow has no reader for them: Protobuf's own reads one after the other, by the newest schema, since fields
are known by their numbers whatever schema wrote them.

Any bytes may be fields that the schema does not know. A body that has such fields and none of its own does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.unknown_fields import UnknownFieldSet

from structured_streaming.typed.declaration import Schema
from structured_streaming.typed.decoded import ANY, Decoded, cut
from structured_streaming.typed.fields import TypedField, joined
from structured_streaming.typed.protobuf_schema import ProtobufSchema
from structured_streaming.typed.python_values import PYTHON_BYTES, one_by_one
from structured_streaming.typed.registry_frame import message_indexes


class ProtobufBodies:
    """See `Decoder`. Raises SchemaError."""

    def __init__(self, schemas: Sequence[Schema]) -> None:
        versions = [(each.version, ProtobufSchema(each.text, each.message)) for each in schemas]
        self._newest = versions[-1]
        self._by_version = {made[0]: made for made in versions}
        self.fields: list[TypedField] = []
        for _, schema in versions:
            self.fields = joined(self.fields, schema.fields)
        self.left_out = self._newest[1].left_out
        self.bytes_of_lists = PYTHON_BYTES + int(max(schema.bytes_of_lists for _, schema in versions))

    def decode(self, bodies: pa.BinaryArray, version: int = ANY) -> Decoded:
        """See `Decoder.decode`."""
        return one_by_one(bodies, self.fields, lambda body: self._one(body, version))

    def _one(self, body: bytes, only: int) -> tuple[dict[str, Any] | None, int, str | None]:
        """Value, version, reason."""
        version, schema = self._newest
        try:
            if only != ANY:  # a registry's, whose clients also name the message
                version, schema = self._by_version[only]
                indexes, begin = message_indexes(body, 0)
                if indexes != schema.indexes:
                    return (
                        None,
                        0,
                        f"it is message {indexes} of the schema's file, the topic's is {schema.indexes}",
                    )
                body = body[begin:]
            message = schema.parse(body)
            if not message.ListFields() and len(UnknownFieldSet(message)):
                return None, 0, "none of its fields is one of the schema"
            if not message.IsInitialized():
                return (
                    None,
                    0,
                    cut(f"required fields are missing: {', '.join(message.FindInitializationErrors())}"),
                )
            return schema.values(message), version, None
        except Exception as error:  # whatever Protobuf meets in bytes of anybody
            return None, 0, cut(f"it is no Protobuf of the schema: {type(error).__name__}: {error}")
