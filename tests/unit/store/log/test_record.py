"""The record codec, beyond `test_store.py`: every field, the limits, and what does not decode."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.errors import RecordError
from store.log.record import (
    CRC_BYTES,
    FIXED_BYTES,
    MAGIC_V1,
    MAGIC_V2,
    PROPERTIES_MAX_BYTES,
    SYS_BORN_HOST_V6,
    SYS_STORE_HOST_V6,
    TOPIC_MAX_BYTES,
    Host,
    PendingRecord,
    decode_properties,
    decode_record,
    encode_properties,
    encode_record,
    java_hash,
    offset_msg_id,
    tags_code,
    unpack_host,
)
from store.scan import scan
from tests.suite.evidence import rounds

V4, V6 = Host("192.168.0.1", 10911), Host("2001:db8::1", 65535)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
HOSTS = st.builds(Host, st.ip_addresses(v=4).map(str), st.integers(0, 65535)) | st.builds(
    Host, st.ip_addresses(v=6).map(str), st.integers(0, 65535)
)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20)


def pending(**changes: Any) -> PendingRecord:
    return replace(PendingRecord("t", 3, b"body", b"a\x01b\x02", 5, V4.packed), **changes)


def encoded(
    record: PendingRecord, *, store_host: Host = V4, append_crc: bool = True, offset: int = 0
) -> bytes:
    parts = encode_record(
        record,
        queue_offset=7,
        physical_offset=offset,
        store_timestamp=9,
        store_host=store_host.packed,
        append_crc=append_crc,
    )
    return b"".join(bytes(part) for part in parts)


@settings(max_examples=rounds(40, 200), deadline=None)
@given(
    record=st.builds(
        PendingRecord,
        topic=st.text(st.characters(codec="utf-8"), max_size=150),
        queue_id=INTS,
        body=st.binary(max_size=300),
        properties=st.dictionaries(TEXT.filter(bool), TEXT, max_size=5).map(encode_properties),
        born_timestamp=LONGS,
        born_host=HOSTS.map(lambda host: host.packed),
        flag=INTS,
        reconsume_times=INTS,
        prepared_transaction_offset=LONGS,
    ),
    store_host=HOSTS,
    crc=st.booleans(),
    offset=st.integers(0, 1 << 62),
)
def test_every_field_comes_back(record: PendingRecord, store_host: Host, crc: bool, offset: int) -> None:
    data = encoded(record, store_host=store_host, append_crc=crc, offset=offset)
    found = decode_record(b"???" + data + b"behind", 3, offset)
    assert found.size == len(data)
    assert (found.topic, found.queue_id, bytes(found.body)) == (record.topic, record.queue_id, record.body)
    assert (found.born_timestamp, found.born_host.packed) == (record.born_timestamp, record.born_host)
    assert (found.store_timestamp, found.store_host.packed) == (9, store_host.packed)
    assert (found.flag, found.reconsume_times) == (record.flag, record.reconsume_times)
    assert found.prepared_transaction_offset == record.prepared_transaction_offset
    assert (found.physical_offset, found.queue_offset) == (offset, 7)
    assert found.properties[: len(record.properties)] == record.properties
    assert len(found.properties) == len(record.properties) + (CRC_BYTES if crc else 0)
    columns = scan(data, offset)
    assert len(columns) == 1
    assert columns.rows[0].tolist()[1:2] == [len(data)]
    assert columns.reconsume_times[0] == record.reconsume_times
    assert columns.prepared_transaction_offset[0] == record.prepared_transaction_offset
    assert columns.born_host_length[0] == len(record.born_host)
    assert columns.store_host_length[0] == len(store_host.packed)
    start = int(columns.store_host_start[0])
    assert data[start : start + len(store_host.packed)] == store_host.packed


def test_the_layout_is_the_documented_one() -> None:
    data = encoded(pending(), append_crc=False)
    assert data == struct.pack(
        ">iIIiiqqiq4sIq4sIiqi4sB1sH4s",
        len(data), MAGIC_V1, zlib.crc32(b"body") & 0x7FFFFFFF, 3, 0, 7, 0, 0, 5, bytes([192, 168, 0, 1]), 10911,
        9, bytes([192, 168, 0, 1]), 10911, 0, 0, 4, b"body", 1, b"t", 4, b"a\x01b\x02",
    )  # fmt: skip
    assert len(data) == FIXED_BYTES + 8 + 8 + 4 + 2 + 4


@pytest.mark.parametrize(("born", "stored"), [(V4, V4), (V6, V4), (V4, V6), (V6, V6)])
def test_hosts_set_their_flags(born: Host, stored: Host) -> None:
    found = decode_record(encoded(pending(born_host=born.packed, sys_flag=0x8), store_host=stored))
    assert found.sys_flag == 0x8 | (SYS_BORN_HOST_V6 if born is V6 else 0) | (
        SYS_STORE_HOST_V6 if stored is V6 else 0
    )
    assert (found.born_host, found.store_host) == (born, stored)
    assert unpack_host(born.packed) == born


@pytest.mark.parametrize(
    ("topic", "magic"),
    [("t" * 127, MAGIC_V1), ("t" * 128, MAGIC_V2), ("ä" * 64, MAGIC_V2), ("t" * TOPIC_MAX_BYTES, MAGIC_V2)],
)
def test_long_topics_take_the_second_layout(topic: str, magic: int) -> None:
    data = encoded(pending(topic=topic))
    assert int.from_bytes(data[4:8], "big") == magic
    assert decode_record(data).topic == topic
    assert scan(data, 0).topic_length[0] == len(topic.encode())


def test_what_does_not_fit_a_record_is_refused() -> None:
    with pytest.raises(RecordError, match="topic of 32768 bytes"):
        encoded(pending(topic="t" * (TOPIC_MAX_BYTES + 1)))
    most = PROPERTIES_MAX_BYTES - CRC_BYTES
    assert len(scan(encoded(pending(properties=b"a\x01" + b"x" * (most - 3) + b"\x02")), 0)) == 1
    with pytest.raises(RecordError, match="properties of 32768 bytes"):
        encoded(pending(properties=b"a\x01" + b"x" * (most - 2) + b"\x02"))
    assert decode_record(encoded(pending(properties=b"x" * PROPERTIES_MAX_BYTES), append_crc=False))


@given(st.binary(max_size=100), TEXT)
def test_the_crc_property_is_that_of_all_before_it(body: bytes, value: str) -> None:
    data = encoded(pending(body=body, properties=encode_properties({"k": value})))
    name, digits = data[-CRC_BYTES:-1].split(b"\x01")
    assert name == b"__CRC32#"
    assert int(digits[::-1]) == zlib.crc32(data[:-CRC_BYTES]) & 0x7FFFFFFF
    assert data[-1] == 2


def test_a_missing_separator_is_added_before_the_crc() -> None:
    found = decode_record(encoded(pending(properties=b"a\x01b")))
    assert list(found.properties_map()) == ["a", "__CRC32#"]
    assert found.properties_map()["a"] == "b"


@pytest.mark.parametrize("crc", [True, False])
def test_every_cut_is_an_error(crc: bool) -> None:
    data = encoded(pending(), append_crc=crc)
    for length in range(len(data)):
        with pytest.raises(RecordError, match="no whole record at physical offset 0"):
            decode_record(data[:length])


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (0, (0).to_bytes(4, "big"), "no whole record"),
        (0, (1 << 30).to_bytes(4, "big"), "no whole record"),
        (0, b"\xff\xff\xff\xff", "no whole record"),
        (4, b"\xcb\xd4\x31\x94", "magic 0xcbd43194"),
        (8, b"\x00\x00\x00\x01", "body's CRC does not match"),
        (28, (77).to_bytes(8, "big"), "says it is at 77"),
        (84, b"\xff\xff\xff\xff", "body of -1 bytes"),
        (84, b"\x00\x00\xff\xff", "body of 65535 bytes"),
        (92, b"\xff", "do not add up|no whole record"),
        (93, b"\xff", "no whole record"),
        (94, b"\x00\x01", "do not add up"),
    ],
)
def test_wrong_fields_are_errors(position: int, value: bytes, message: str) -> None:
    data = bytearray(encoded(pending(), append_crc=False))
    data[position : position + len(value)] = value
    with pytest.raises(RecordError, match=message):
        decode_record(data, 0, 0)


@settings(max_examples=rounds(40, 300), deadline=None)
@given(st.integers(0, 117), st.binary(min_size=1, max_size=8))
def test_overwritten_bytes_decode_or_are_an_error(position: int, value: bytes) -> None:
    data = bytearray(encoded(pending()))
    data[position : position + len(value)] = value
    for verify in (True, False):
        try:
            found = decode_record(data, 0, 0, verify=verify)
        except RecordError:
            continue
        assert found.size <= len(data)


@given(st.binary(max_size=300))
def test_anything_decodes_or_is_an_error(data: bytes) -> None:
    with pytest.raises(RecordError):
        decode_record(data)


@given(st.dictionaries(TEXT.filter(bool), TEXT, max_size=8))
def test_properties_come_back(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_java_hash_is_the_sum_of_powers(text: str) -> None:
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    total = sum(unit * 31 ** (len(units) - 1 - position) for position, unit in enumerate(units))
    assert java_hash(text) % (1 << 32) == total % (1 << 32)
    assert -(1 << 31) <= java_hash(text) < 1 << 31


def test_codes_and_ids() -> None:
    assert tags_code(None) == tags_code("") == 0
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert offset_msg_id(Host("127.0.0.1", 10911).packed, 0x1234) == "7F00000100002A9F0000000000001234"
