"""Records appended as columns are those appended one by one, byte for byte."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebroker_testing import logs
from store import columns
from store.columns import PendingColumns
from store.errors import RecordTooLargeError
from store.kernels.crc32 import crc32, joined
from store.kernels.encode import encode
from store.log.record import PROPERTIES_MAX_BYTES, Host, encode_record, encode_topic
from store.message_store import MessageStore
from tests.suite.evidence import rounds

HOST = Host("10.0.0.1", 10911)
HOST6 = Host("2001:db8::1", 10911)
SEGMENT = 1 << 16


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path)
    store.load_compiled()
    yield store
    store.close()


open_store = partial(logs.open_store, store_host=HOST, segment_size=SEGMENT)


def batch(
    bodies: list[bytes], topic: str = "t", queue_id: int = 0, host: Host = HOST, tail: bytes = b""
) -> PendingColumns:
    properties = [b"UNIQ_KEY\x01%d\x02" % number for number in range(len(bodies))]
    rows = np.full((len(bodies), columns.COLUMNS + 2), -1, dtype=np.int64)
    at = start = 0
    for number, (body, own) in enumerate(zip(bodies, properties, strict=True)):
        rows[number, : columns.BODY_CRC] = [at, len(body), start, len(own), 1000 + number, 0, number]
        rows[number, columns.FLAG] = 7 + number
        rows[number, columns.RECONSUME_TIMES] = number
        rows[number, columns.PREPARED_TRANSACTION_OFFSET] = number << 40
        at, start = at + len(body), start + len(own)
    return PendingColumns(
        topic,
        queue_id,
        host.packed,
        b"".join(bodies),
        b"".join(properties),
        rows,
        at + start,
        len(bodies),
        tail,
    )


def log_bytes(store: MessageStore, start: int, end: int) -> bytes:
    return b"".join(bytes(data) for _, data, _ in store.read_chunks(start, end, SEGMENT))


def assert_appended(store: MessageStore, batches: list[PendingColumns]) -> None:
    """Appends; what the log then holds is what the plain path writes, and the index knows it."""
    offset = store.max_offset
    expected_queue = [store.index.max_offset(each.topic, each.queue_id) for each in batches]
    firsts = store.append_columns(batches)
    following: dict[tuple[str, int], int] = {}
    for each, first, before in zip(batches, firsts, expected_queue, strict=True):
        key = (each.topic, each.queue_id)
        assert first == following.get(key, before)
        following[key] = first + len(each)
        for number, record in enumerate(each.records()):
            entry = store.index.entries(each.topic, each.queue_id, first + number, 1)
            at, size = int(entry.offsets[0]), int(entry.sizes[0])
            if at != offset:
                assert at == offset - offset % SEGMENT + SEGMENT  # it rolled
            stored = store.record(at, size)
            plain = encode_record(record, first + number, at, stored.store_timestamp, HOST.packed, True)
            assert bytes(store.read(at, size)) == b"".join(plain)
            assert entry.codes[0] == record.tags_code
            assert store.index.is_record_start(at)
            offset = at + size
    assert store.max_offset == offset


bodies = st.lists(st.binary(max_size=200) | st.just(b"x" * 5000), min_size=1, max_size=12)


@settings(max_examples=rounds(15, 40), deadline=None)
@given(
    calls=st.lists(
        st.lists(
            st.tuples(
                bodies,
                st.sampled_from(["t", "u" * 200]),
                st.integers(0, 2),
                st.sampled_from([HOST, HOST6]),
                st.sampled_from([b"", b"TRACE_ON\x01true\x02", b"without\x01end"]),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=6,
    )
)
def test_same_as_the_plain_path(
    calls: list[list[tuple[list[bytes], str, int, Host, bytes]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("store")
    store = open_store(root)
    store.load_compiled()
    for call in calls:
        assert_appended(store, [batch(*each) for each in call])
    end, records = store.max_offset, len(store.index)
    known = {key: store.index.max_offset(*key) for key in store.index.queues()}
    store.close()
    shutil.rmtree(root / "lakeindex")  # so that a start has to scan the log
    store = open_store(root)
    assert not store.recovered.bad
    assert (store.max_offset, len(store.index)) == (end, records)
    assert {key: store.index.max_offset(*key) for key in store.index.queues()} == known
    store.close()


def test_records_of_a_batch_are_no_objects(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_appended(store, [batch([b"first"])])  # makes the segment, the plain way
    monkeypatch.setattr(PendingColumns, "_record", None)
    assert store.append_columns([batch([b"a", b"b"])]) == [1]


def test_without_the_compiler(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert_appended(store, [batch([b"a", b"b"]), batch([b"c"])])
    store.close()


def test_a_batch_larger_than_what_the_segment_has_left(store: MessageStore) -> None:
    assert_appended(store, [batch([b"x" * 15_000] * 4)])
    assert_appended(store, [batch([b"y" * 3000, b"z" * 3000])])
    assert store.max_offset > SEGMENT


def test_a_body_that_is_too_large_is_refused_whole(store: MessageStore) -> None:
    assert_appended(store, [batch([b"a"])])
    before = store.max_offset
    with pytest.raises(RecordTooLargeError, match="does not fit a segment"):
        store.append_columns([batch([b"b"]), batch([b"x" * SEGMENT, b"c"])])
    assert store.max_offset == before
    assert_appended(store, [batch([b"d"])])


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (columns.BODY_START, -1),
        (columns.BODY_START, 5),
        (columns.BODY_LENGTH, 5),
        (columns.BODY_LENGTH, -1),
        (columns.PROPERTIES_START, -1),
        (columns.PROPERTIES_START, 50),
        (columns.PROPERTIES_LENGTH, 50),
        (columns.PROPERTIES_LENGTH, -1),
    ],
)
def test_nothing_is_read_or_written_outside_of_the_buffers(column: int, value: int) -> None:
    some = batch([b"body"])
    some.rows[0, column] = value
    assert _encode(some, np.zeros(1000, dtype=np.uint8), 100) == -1


def test_a_tail_that_no_record_can_hold() -> None:
    some = batch([b"body"], tail=b"k" * PROPERTIES_MAX_BYTES)
    assert _encode(some, np.zeros(1 << 17, dtype=np.uint8), 100) == -1


def test_properties_that_no_record_can_hold() -> None:
    some = batch([b"body"])
    some.properties = b"k" * PROPERTIES_MAX_BYTES
    some.rows[0, columns.PROPERTIES_LENGTH] = PROPERTIES_MAX_BYTES - 10
    assert _encode(some, np.zeros(1 << 17, dtype=np.uint8), 100) == -1


def test_the_size_of_the_first_record_is_held_back() -> None:
    out = np.zeros(1000, dtype=np.uint8)
    end = _encode(batch([b"one", b"two"]), out, 100)
    assert not out[:104].any()
    assert out[104:end].any()
    assert not out[end:].any()


def _encode(some: PendingColumns, out: np.ndarray[tuple[int], np.dtype[np.uint8]], position: int) -> int:
    magic, topic = encode_topic(some.topic)
    sizes = np.zeros(len(some), dtype=np.int64)
    host = HOST.packed
    return encode(
        out, position, 0, True, magic, topic, 0, 0, 1, host, host, 0, True, some.bodies, some.properties,
        some.tail, some.rows, sizes,
    )  # fmt: skip


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 40))
def test_crc(one: bytes, other: bytes, skipped: int) -> None:
    start = min(skipped, len(one))
    assert crc32(one, start, len(one), 0) == zlib.crc32(one[start:])
    assert crc32(other, 0, len(other), zlib.crc32(one)) == zlib.crc32(one + other)
    assert joined(zlib.crc32(one), zlib.crc32(other), len(other)) == zlib.crc32(one + other)


def test_crc_of_long_pieces() -> None:
    one, other = b"a" * 70_000, bytes(range(256)) * 4099
    assert joined(zlib.crc32(one), zlib.crc32(other), len(other)) == zlib.crc32(one + other)
