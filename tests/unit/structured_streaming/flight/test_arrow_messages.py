"""Arrow in messages of Flight: every row comes through, in messages that clients take; what clients send is checked."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable

import pyarrow as pa
import pytest

from lakebroker_pb.arrow.flight.protocol import flight_pb2 as flight
from structured_streaming.flight.arrow_messages import stream, table_of
from structured_streaming.flight.failures import CallError


def messages(table: pa.Table, options: pa.ipc.IpcWriteOptions | None = None) -> list[flight.FlightData]:
    """What a client that uses Arrow's own writer sends."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    return [
        flight.FlightData(data_header=bytes(each.metadata), data_body=bytes(each.body)) for each in reader
    ]


def streamed(table: pa.Table, rows: int) -> list[flight.FlightData]:
    return list(stream(table.schema, iter(table.to_batches(max_chunksize=rows))))


def received(sent: Iterable[flight.FlightData]) -> pa.Table:
    parts = list(sent)
    return table_of(parts)


@pytest.mark.parametrize("rows", [1, 7, 100_000])
def test_rows_come_through_whatever_batches_they_came_in(rows: int) -> None:
    dice = random.Random(2)
    table = pa.table(
        {
            "n": pa.array([None if n % 7 == 0 else n for n in range(3000)], pa.int64()),
            "body": [dice.randbytes(dice.choice((0, 10, 3000))) for _ in range(3000)],
            "keys": [["a", f"b{n}"][: n % 3] for n in range(3000)],
            "map": pa.array([[("k", str(n))] for n in range(3000)], pa.map_(pa.string(), pa.string())),
        }
    )
    sent = streamed(table, rows)
    assert received(sent).equals(table)
    assert max(each.ByteSize() for each in sent) < 2 << 20
    assert 3 < len(sent) < 40


def test_a_row_larger_than_a_message_goes_alone() -> None:
    bodies = [b"x", b"y" * (3 << 20), b"z", b"", b"w" * (2 << 20)]
    sent = streamed(pa.table({"body": bodies}), 5)
    assert received(sent)["body"].to_pylist() == bodies
    assert len([each for each in sent if each.ByteSize() > 1 << 20]) == 2


def test_dictionaries_are_sent_as_their_values() -> None:
    table = pa.table({"event": pa.array(["acked", None, "acked"]).dictionary_encode()})
    found = received(streamed(table, 2))
    assert found.schema.field("event").type == pa.string()
    assert found["event"].to_pylist() == ["acked", None, "acked"]


def test_no_rows_are_a_schema() -> None:
    table = pa.schema([("n", pa.int32())]).empty_table()
    assert received(streamed(table, 1)).equals(table)


def test_what_arrows_own_writer_sends_is_read() -> None:
    table = pa.table({"a": ["x"], "b": [5]})
    assert table_of(messages(table)).equals(table)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_rows_are_refused_before_they_are_read(codec: str) -> None:
    sent = messages(pa.table({"a": [bytes(100_000)]}), pa.ipc.IpcWriteOptions(compression=codec))
    assert sum(each.ByteSize() for each in sent) < 5000
    with pytest.raises(CallError, match="without dictionaries and compression"):
        table_of(sent)


def test_dictionaries_of_clients_are_refused() -> None:
    with pytest.raises(CallError, match="without dictionaries and compression"):
        table_of(messages(pa.table({"a": pa.array(["x"]).dictionary_encode()})))


def test_damaged_messages_are_an_error_and_no_more() -> None:
    good = messages(pa.table({"a": ["some text"], "b": [5], "c": [[1, 2, 3]]}))
    dice = random.Random(3)
    refused = 0
    for _ in range(3000):
        sent = [flight.FlightData.FromString(each.SerializeToString()) for each in good]
        damaged = dice.choice(sent)
        name = dice.choice(["data_header", "data_body"])
        data = bytearray(getattr(damaged, name))
        if data:
            for _ in range(dice.choice((1, 4))):
                data[dice.randrange(len(data))] = dice.randrange(256)
        setattr(damaged, name, bytes(data[: dice.randrange(len(data) + 1)] if dice.random() < 0.3 else data))
        try:
            table_of(sent)
        except CallError:
            refused += 1
    assert refused > 1000


@pytest.mark.parametrize("sent", [[], [b""], [b"\0"], [b"\xff" * 64], [bytes(64)]])
def test_what_is_no_message_is_refused(sent: list[bytes]) -> None:
    with pytest.raises(CallError):
        table_of([flight.FlightData(data_header=each) for each in sent])


def test_rows_that_take_no_bytes_are_counted_and_not_made() -> None:
    """A batch of NULLs alone says how many it has, and no more."""
    schema, rows = messages(pa.table({"a": pa.nulls(98_765)}))
    header = rows.data_header.replace(struct.pack("<q", 98_765), struct.pack("<q", 1 << 40))
    assert header != rows.data_header
    found = table_of([schema, flight.FlightData(data_header=header, data_body=rows.data_body)])
    assert found.num_rows == 1 << 40
