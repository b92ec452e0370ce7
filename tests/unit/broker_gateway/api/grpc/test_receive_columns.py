"""The compiled shortcut of a receive gives the plain path's bytes, or leaves a record to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_gateway.api.grpc.kernels import receive_walk
from broker_gateway.api.grpc.kernels.receive_walk import MOST_PROPERTIES, OUT_BYTES
from broker_gateway.api.grpc.receive_columns import ReceiveColumns
from broker_gateway.api.grpc.shortcuts import plain, received
from broker_gateway.delivery.handles import encode_handle
from broker_gateway.messaging.broker_properties import BrokerProperties, born_property
from broker_gateway.messaging.poll import Delivered
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.metadata.names import RESERVED_PROPERTIES
from store.errors import RecordError, StoreError
from store.log.record import Host, PendingRecord, encode_properties, encode_record
from tests.suite.evidence import rounds

MS = st.integers(0, 253_402_300_799_999)
LONG = st.integers(0, (1 << 62) - 1)
TEXT = st.text(st.characters(min_codepoint=3, max_codepoint=126), min_size=1, max_size=140)
ANY = st.text(max_size=5)
USUAL = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "__BORNHOST", "WAIT"]) | TEXT, TEXT, max_size=5)
ODD = st.dictionaries(st.sampled_from([*sorted(RESERVED_PROPERTIES)]) | ANY, ANY, max_size=4)
HANDLE = (0x4000_0003, 0xFEDC_BA98_7654_3210)
BROKERS = BrokerProperties("DefaultRegion", "DefaultCluster", trace_on=True)
FIRST_OFFSET = 7


@pytest.fixture(scope="module")
def columns() -> ReceiveColumns:
    return ReceiveColumns()


def record(
    properties: dict[str, str] | bytes,
    body: bytes = b"body",
    *,
    topic: str = "topic",
    queue: tuple[int, int] = (0, 0),
    born: int = 1_700_000_000_123,
    stored: int = 1_700_000_000_456,
    flag: int = 0,
    hosts: tuple[str, str] = ("10.0.200.3", "192.168.0.1"),
    crc: bool = True,
) -> bytes:
    encoded = properties if isinstance(properties, bytes) else encode_properties(properties)
    pending = PendingRecord(topic, queue[0], body, encoded, born, Host(hosts[0], 1).packed, sys_flag=flag)
    store_host = Host(hosts[1], 10_911).packed
    return b"".join(encode_record(pending, queue[1], 4096, stored, store_host, append_crc=crc))


def taken(
    columns: ReceiveColumns,
    records: Sequence[bytes],
    most_bytes: int = 1 << 20,
    topic: str = "ns%topic",
    invisible_ms: int = 30_000,
    wanted: Callable[[str | None], bool] | None = None,
) -> list[Delivered | None]:
    sizes = np.array([len(each) for each in records], dtype=np.int64)
    starts = np.cumsum(sizes) - sizes + 3
    offsets = np.arange(len(records), dtype=np.int64) + FIRST_OFFSET
    data = memoryview(b"xyz" + b"".join(records))
    return columns.take(data, starts, sizes, offsets, most_bytes, topic, HANDLE, invisible_ms, wanted)


def plainly(data: bytes, number: int = 0, topic: str = "ns%topic", invisible_ms: int = 30_000) -> Delivered:
    stored = StoredMessage(memoryview(data))
    handle = encode_handle(HANDLE[0], FIRST_OFFSET + number, HANDLE[1])
    response = received(stored, topic, handle, 1, invisible_ms)
    return Delivered(response, stored.message_id, stored.body_length)


@settings(max_examples=rounds(50, 300), deadline=None)
@given(
    properties=USUAL,
    body=st.binary(max_size=300),
    topic=st.text("abc%-_", min_size=1, max_size=200),
    queue=st.tuples(st.integers(0, (1 << 31) - 1), LONG),
    born=MS,
    stored=MS,
    flag=st.sampled_from([0, 1]),
    brokers=st.booleans(),
    delivery=st.tuples(TEXT, st.integers(0, 43_200_000)),
)
@example({"KEYS": " a  bc "}, b"", "t", (0, 0), 0, 0, 0, True, ("m", 10_000))
@example({"KEYS": " "}, b"x" * 40_000, "t", (1, 1), 999, 1000, 1, False, ("m" * 200, 0))
def test_same_as_the_plain_path(
    columns: ReceiveColumns,
    properties: dict[str, str],
    body: bytes,
    topic: str,
    queue: tuple[int, int],
    born: int,
    stored: int,
    flag: int,
    brokers: bool,
    delivery: tuple[str, int],
) -> None:
    message_id, invisible_ms = delivery
    encoded = encode_properties({"UNIQ_KEY": message_id} | properties)
    if brokers:
        encoded += b"\x02" * (not encoded.endswith(b"\x02")) + born_property(born) + BROKERS.encoded(topic)
    data = record(encoded, body, topic=topic, queue=queue, born=born, stored=stored, flag=flag, crc=brokers)
    (found,) = taken(columns, [data], topic=topic, invisible_ms=invisible_ms)
    plain = plainly(data, topic=topic, invisible_ms=invisible_ms)
    assert found == plain


@settings(max_examples=rounds(50, 300), deadline=None)
@given(
    properties=ODD,
    hosts=st.sampled_from([("10.0.0.1", "10.0.0.2"), ("::1", "10.0.0.2"), ("10.0.0.1", "::1")]),
)
def test_any_record_is_the_same_or_left_to_the_plain_path(
    columns: ReceiveColumns, properties: dict[str, str], hosts: tuple[str, str]
) -> None:
    data = record(properties | {"UNIQ_KEY": "id"}, hosts=hosts)
    for found in taken(columns, [data]):
        assert found == plainly(data)


@settings(max_examples=rounds(50, 100), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_damaged_records(columns: ReceiveColumns, seed: int) -> None:
    chance = random.Random(seed)
    data = bytearray(record({"UNIQ_KEY": "0123456789ABCDEF" * 2, "TAGS": "t", "user": "value"}, b"b" * 40))
    for _ in range(chance.randint(1, 3)):
        data[chance.randrange(len(data))] = chance.choice([0, 1, 2, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    if chance.random() < 0.3:
        del data[chance.randrange(len(data)) :]
    try:
        plain = plainly(bytes(data))
    except RecordError:
        assert not taken(columns, [bytes(data)])
    else:
        assert taken(columns, [bytes(data)]) in ([], [plain])


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"UNIQ_KEY\x01",
        b"UNIQ_KEY\x01\xc3\xa9",
        b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b",
        b"UNIQ_KEY\x01a\x02\x02k\x01v",
        b"UNIQ_KEY\x01a\x02k",
        b"UNIQ_KEY\x01a\x02\x01v",
        b"UNIQ_KEY\x01a\x02k\xff\x01v",
        *(
            f"UNIQ_KEY\x01a\x02{name}\x01x".encode()
            for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC")
        ),
        *(
            f"UNIQ_KEY\x01a\x02{name}\x01x".encode()
            for name in ("__SHARDINGKEY", "TRACE_CONTEXT", "TRAN_MSG")
        ),
        b"UNIQ_KEY\x01a\x02DLQ_ORIGIN_TOPIC\x01x\x02DLQ_ORIGIN_MESSAGE_ID\x01y",
        b"UNIQ_KEY\x01a\x02" + b"".join(b"k%d\x01v\x02" % n for n in range(MOST_PROPERTIES)),
    ],
)
def test_unusual_records_are_left_to_the_plain_path(columns: ReceiveColumns, properties: bytes) -> None:
    usual = record({"UNIQ_KEY": "a"})
    assert len(taken(columns, [usual, record(properties), usual])) == 1


def test_a_damaged_body_is_left_to_the_plain_path(columns: ReceiveColumns) -> None:
    usual = record({"UNIQ_KEY": "a"}, b"body-of-it")
    assert len(taken(columns, [usual, usual.replace(b"body-of-it", b"body_of_it"), usual])) == 1


def test_many_records_until_bodies_have_so_many_bytes(columns: ReceiveColumns) -> None:
    records = [record({"UNIQ_KEY": f"id-{n}"}, bytes(100), queue=(3, n)) for n in range(20)]
    assert taken(columns, records) == [plainly(each, n) for n, each in enumerate(records)]
    assert len(taken(columns, records, most_bytes=350)) == 4
    assert taken(columns, records, most_bytes=0) == []


def test_what_does_not_fit_is_left_to_the_plain_path(columns: ReceiveColumns) -> None:
    small, large = record({"UNIQ_KEY": "a"}), record({"UNIQ_KEY": "b"}, bytes(OUT_BYTES))
    assert len(taken(columns, [small, large])) == 1
    fits = record({"UNIQ_KEY": "c"}, bytes(OUT_BYTES - 1000))
    assert taken(columns, [fits]) == [plainly(fits)]


@pytest.mark.parametrize("size", [0, 1, 4, 75, 88, 90, 91, 92])
def test_records_that_end_early(columns: ReceiveColumns, size: int) -> None:
    data = bytearray(record({"UNIQ_KEY": "a"})[:size])
    if size >= 4:
        data[:4] = size.to_bytes(4, "big")
    assert taken(columns, [bytes(data)]) == []


def test_nothing_is_compiled_but_at_the_start(columns: ReceiveColumns) -> None:
    data = record({"UNIQ_KEY": "a"})
    place = [
        np.array([each], dtype=kind) for each, kind in ((0, np.int64), (len(data), np.int32), (5, np.uint32))
    ]
    place[0].flags.writeable = False
    for view in (
        memoryview(data),
        memoryview(bytearray(data)),
        memoryview(np.frombuffer(data, dtype=np.uint8)),
    ):
        assert len(columns.take(view, *place, 100, "t" * 300, HANDLE, 0, None)) == 1
    assert len(receive_walk.walk.signatures) == 1


def test_places_outside_of_the_data(columns: ReceiveColumns) -> None:
    data = record({"UNIQ_KEY": "a"})
    for start, size in ((-1, len(data)), (1, len(data)), (0, -1), (0, 1 << 62), (1 << 62, 10)):
        starts, sizes, offsets = (np.array([each], dtype=np.int64) for each in (start, size, 0))
        assert columns.take(memoryview(data), starts, sizes, offsets, 100, "t", HANDLE, 0, None) == []


def test_what_is_not_wanted_is_passed_over(columns: ReceiveColumns) -> None:
    records = [
        record({"UNIQ_KEY": f"id-{tag}"} | ({"TAGS": tag} if tag else {})) for tag in ("Aa", "BB", "", "Aa")
    ]
    asked: list[str | None] = []

    def wanted(tag: str | None) -> bool:
        asked.append(tag)
        return tag == "Aa"

    assert taken(columns, records, wanted=wanted) == [plainly(records[0]), None, None, plainly(records[3], 3)]
    assert asked == ["Aa", "BB", None, "Aa"]


@pytest.mark.parametrize("behind", [b"TAGS\x01abc\x02", b"k\x01vvvvvv\x02"])
def test_a_property_named_as_the_crc_hides_none_behind_it(columns: ReceiveColumns, behind: bytes) -> None:
    data = record(b"UNIQ_KEY\x01id\x02BORN_TIMESTAMP\x011\x02__CRC32#\x011\x02" + behind, crc=False)
    assert taken(columns, [data]) == [plainly(data)]
    stored = StoredMessage(memoryview(data))
    assert plainly(data).written == plain(
        stored, "ns%topic", encode_handle(HANDLE[0], FIRST_OFFSET, HANDLE[1]), 1, 30_000
    )


def test_a_negative_queue_offset_goes_the_plain_path(columns: ReceiveColumns) -> None:
    data = bytearray(record({"UNIQ_KEY": "a"}))
    data[20] = 0x80
    assert taken(columns, [bytes(data)]) == []
    stored = StoredMessage(memoryview(bytes(data)))
    assert received(stored, "t", "h", 1, 1) == plain(stored, "t", "h", 1, 1)


def test_compiled_code_that_writes_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = receive_walk.walk

    def wrong(*arguments: object) -> int:
        count = int(right(*arguments))
        out = arguments[-2]
        assert isinstance(out, np.ndarray)
        out[8] ^= 1
        return count

    monkeypatch.setattr(receive_walk, "walk", wrong)
    with pytest.raises(StoreError, match="other bytes than the plain one"):
        ReceiveColumns()
