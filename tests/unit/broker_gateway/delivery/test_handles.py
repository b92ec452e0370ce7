"""Receipt handles and where a moved copy came from: what is written is read, nothing else is."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.delivery.handles import Handle, decode_handle, decode_handles, encode_handle

QUEUES = st.integers(0, (1 << 32) - 1)
LONGS = st.integers(0, (1 << 64) - 1)


@given(QUEUES, LONGS, LONGS)
def test_a_handle_is_28_characters_and_reads_back(queue_id: int, offset: int, delivery_id: int) -> None:
    text = encode_handle(queue_id, offset, delivery_id)
    assert len(text) == 28
    assert decode_handle(text) == Handle(queue_id, offset, delivery_id)


@given(st.text(max_size=40) | st.text("AZaz09-_+/= \n", min_size=28, max_size=28))
def test_any_text_is_a_handle_or_none(text: str) -> None:
    found = decode_handle(text)
    if found is not None:
        assert encode_handle(*found) == text


@given(
    st.lists(
        st.builds(encode_handle, QUEUES, LONGS, LONGS)
        | st.text(max_size=40)
        | st.text("AQgz09-_+/= \n", min_size=28, max_size=28),
        max_size=5,
    )
)
def test_handles_are_read_together_as_alone(texts: list[str]) -> None:
    assert decode_handles(texts) == [decode_handle(each) for each in texts]
    assert [each for each in texts if _readable(each)] == [
        encode_handle(*each) for each in decode_handles(texts) if each is not None
    ]


def _readable(text: str) -> bool:
    """By way of the standard library alone."""
    if len(text) != 28 or not text.isascii() or any(each in text for each in "+/=\n "):
        return False
    packed = base64.urlsafe_b64decode(text)
    return len(packed) == 21 and packed[0] == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A" * 27,
        "A" * 29,
        "A" * 28,  # version 0
        "AQ" + "=" * 26,
        "AQAA AAAAAAAAAAAAAAAAAAAAAAA",
        "AQÄAAAAAAAAAAAAAAAAAAAAAAAAA",
        base64.b64encode(b"\x02" + bytes(20)).decode(),
        base64.b64encode(b"\x01" + b"\xff" * 20).decode(),  # the other alphabet
    ],
)
def test_what_is_no_handle_of_ours_is_none(text: str) -> None:
    assert decode_handle(text) is None


@given(QUEUES, LONGS, LONGS, st.integers(0, 27), st.characters(codec="ascii"))
def test_a_changed_character_is_another_handle(
    queue_id: int, offset: int, delivery_id: int, at: int, character: str
) -> None:
    text = encode_handle(queue_id, offset, delivery_id)
    changed = text[:at] + character + text[at + 1 :]
    if changed != text:
        assert decode_handle(changed) != Handle(queue_id, offset, delivery_id)
