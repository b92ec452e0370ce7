"""Copies that settle their original: what they say of it is read back, or is none of ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.delivery.moves import REASON_PROPERTY, moved_copy
from store.log.copies import ORIGIN_PROPERTY, Origin, decode_origin
from store.log.record import (
    PROPERTY_CRC32,
    Host,
    PendingRecord,
    decode_properties,
    decode_record,
    encode_record,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x01\x02"), max_size=40)
NUMBERS = st.integers(0, (1 << 63) - 1)


@given(NUMBERS, NUMBERS, NUMBERS, NAMES, NAMES)
def test_an_origin_is_read_back(queue_id: int, offset: int, attempt: int, group: str, topic: str) -> None:
    origin = Origin(queue_id, offset, attempt, group, topic)
    assert decode_origin(origin.encode()) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1:2:3",
        "1:2:3:9:short",
        "a:2:3:1:gt",
        "-1:2:3:1:gt",
        "1:2:3:²:gt",
        f"1:2:3:{'9' * 21}:gt",
        "1:2:3::gt",
    ],
)
def test_what_no_copy_says_is_no_origin(text: str) -> None:
    assert decode_origin(text) is None


@given(st.text(max_size=30) | st.text("0123456789:ab-", max_size=30))
def test_any_text_is_an_origin_or_none(text: str) -> None:
    decode_origin(text)


def test_a_copy_has_what_the_record_had_and_where_it_came_from() -> None:
    host = Host("10.0.0.1", 1)
    pending = PendingRecord("t", 3, b"body", b"TAGS\x01a\x02KEYS\x01k", 123, host.packed, 0, 7)
    data = b"".join(encode_record(pending, 9, 0, 456, host.packed, append_crc=True))
    record = decode_record(data, 0, 0)
    known = record.properties_map()
    assert PROPERTY_CRC32 in known
    origin = Origin(3, 9, 2, "g", "t")
    copy = moved_copy(record, known, origin, "%DLQ%g", 0, 2, "tried in vain")
    assert decode_properties(copy.properties) == {
        "TAGS": "a",
        "KEYS": "k",
        ORIGIN_PROPERTY: "3:9:2:1:gt",
        REASON_PROPERTY: "tried in vain",
    }
    assert (copy.topic, copy.queue_id, bytes(copy.body), copy.flag, copy.reconsume_times) == (
        "%DLQ%g",
        0,
        b"body",
        7,
        2,
    )
    assert (copy.born_timestamp, copy.born_host, copy.tags_code) == (123, host.packed, 97)
    assert REASON_PROPERTY not in decode_properties(moved_copy(record, known, origin, "t", 0, 2).properties)
