"""Arrow's schemas and batches as messages of Flight, and back.

An IPC message is: 0xFFFFFFFF, the metadata's length (int32, little endian), the metadata (a flatbuffer, padded to 8
bytes), the body. FlightData has metadata and body apart. Source: Arrow's columnar format, "Encapsulated message format".

What a client sends is checked before Arrow reads it: only a schema and batches, since a dictionary or a compressed body
of a kilobyte can become gigabytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakebroker_pb.arrow.flight.protocol import flight_pb2 as flight
from structured_streaming.embedded.results import pieces
from structured_streaming.flight.failures import bad

_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX = 8
_MESSAGE_BYTES = 1 << 20
"""About what a message has at most; clients in Go take 16 MiB unless they are told otherwise, a row may be larger."""
_LEAST_BYTES = 256 << 10
"""Smaller batches wait for others, since a message costs as much time as this; the first does not."""
_SCHEMA, _RECORD_BATCH = 1, 3
"""MessageHeader of Arrow's Message.fbs."""
_HEADER_TYPE, _HEADER, _COMPRESSION = 1, 2, 3
"""Places of the fields in the tables Message and RecordBatch."""


def schema_bytes(schema: pa.Schema) -> bytes:
    """A schema as SchemaResult and FlightInfo have it."""
    return bytes(schema.serialize())


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without dictionaries at its top: they would have to travel ahead of the batches, and JDBC reads texts."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """A schema as `stream` sends it."""
    return pa.schema([field.with_type(plain(field.type)) for field in schema])


def stream(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Iterator[flight.FlightData]:
    """The schema, then the batches in pieces that a client takes."""
    schema = plain_schema(schema)
    yield _data(schema.serialize())
    for batch in _gathered(batches):
        columns = [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)]
        for piece in pieces(pa.RecordBatch.from_arrays(columns, schema=schema), _MESSAGE_BYTES):
            yield _data(piece.serialize())


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, in batches of at least `_LEAST_BYTES` but for the first and the last."""
    waiting: list[pa.RecordBatch] = []
    size, least = 0, 1
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes + batch.num_rows
        if size >= least:
            yield pa.concat_batches(waiting)
            waiting, size, least = [], 0, _LEAST_BYTES
    if waiting:
        yield pa.concat_batches(waiting)


def _data(message: pa.Buffer) -> flight.FlightData:
    end = _PREFIX + int.from_bytes(message[4:_PREFIX], "little")
    return flight.FlightData(data_header=bytes(message[_PREFIX:end]), data_body=bytes(message[end:]))


def table_of(messages: Sequence[flight.FlightData]) -> pa.Table:
    """The rows that a client sent. Raises CallError when they are no whole stream of plain batches."""
    parts: list[bytes] = []
    for at, message in enumerate(messages):
        kind = _kind(message.data_header)
        if kind != (_RECORD_BATCH if at else _SCHEMA):
            raise bad("the rows are to be a schema and record batches, without dictionaries and compression")
        header = message.data_header + bytes(-len(message.data_header) % 8)
        parts += (_CONTINUATION, len(header).to_bytes(4, "little"), header, message.data_body)
    try:
        table = pa.ipc.open_stream(b"".join(parts)).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:  # the last of names that are no UTF-8
        raise bad(f"the rows are no Arrow stream: {error}") from error
    return table


def _kind(metadata: bytes) -> int:
    """MessageHeader of a message; 0 for a batch that is compressed, and for what is no message."""
    try:
        (root,) = struct.unpack_from("<I", metadata)
        kind_at = _field(metadata, root, _HEADER_TYPE)
        if not kind_at:
            return 0
        kind = metadata[kind_at]
        if kind != _RECORD_BATCH:
            return kind
        header_at = _field(metadata, root, _HEADER)
        batch = header_at + struct.unpack_from("<I", metadata, header_at)[0]
        return 0 if _field(metadata, batch, _COMPRESSION) else kind
    except (struct.error, IndexError):
        return 0


def _field(metadata: bytes, table: int, place: int) -> int:
    """Where a flatbuffer's table has a field; 0 without it. Raises struct.error outside of the bytes."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    if vtable < 0:
        raise struct.error
    (size,) = struct.unpack_from("<H", metadata, vtable)
    at = 4 + 2 * place
    if at + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + at)
    return table + offset if offset else 0
