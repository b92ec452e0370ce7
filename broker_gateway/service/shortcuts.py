"""Replies written as bytes, where building objects for them is what a call would mostly cost.

Each function gives exactly the bytes that serializing the message does; `tests/unit/broker_gateway/
test_shortcuts.py` holds the plain path it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker_gateway.service.status import OK

_OK_BYTES = OK.SerializeToString()


def varint(value: int) -> bytes:
    """A number of 0 to 2**63 - 1 as protobuf writes it."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_ONE_BYTE = [bytes((value,)) for value in range(0x80)]
_OK_FIELD = b"\x0a" + varint(len(_OK_BYTES)) + _OK_BYTES


def sent(message_ids: Sequence[str], queue_offsets: Sequence[int]) -> bytes:
    """A SendMessageResponse whose entries are all OK."""
    parts = [_OK_FIELD]
    for message_id, offset in zip(message_ids, queue_offsets, strict=True):
        text = message_id.encode()
        text = varint(len(text)) + text
        entry = b"%b\x12%b\x1a%b" % (_OK_FIELD, text, text)
        if offset:
            entry += b"\x20" + varint(offset)
        parts += (b"\x12", varint(len(entry)), entry)
    return b"".join(parts)
