"""Receipt handles: what a client shows to settle or change a delivery.

| bytes | field |
|---|---|
| 1 | version, 1 |
| 4 | queue id, unsigned big-endian; its two highest bits: see `retry_topics.py` |
| 8 | queue offset, unsigned big-endian |
| 8 | delivery id: 64 random bits, new for each delivery |

as unpadded base64url. A forged or stale handle is one whose delivery id does not match; nothing in it is
trusted before that.
"""

from __future__ import annotations

import base64
import binascii
import struct
from typing import NamedTuple

_LAYOUT = struct.Struct(">BIQQ")
_VERSION = 1
_TEXT_LENGTH = (_LAYOUT.size * 4 + 2) // 3
assert _LAYOUT.size == 21
assert _TEXT_LENGTH == 28


class Handle(NamedTuple):
    """A decoded receipt handle."""

    queue_id: int
    queue_offset: int
    delivery_id: int


def encode_handle(queue_id: int, queue_offset: int, delivery_id: int) -> str:
    """The text of a handle, 28 characters."""
    packed = _LAYOUT.pack(_VERSION, queue_id, queue_offset, delivery_id)
    return base64.urlsafe_b64encode(packed).decode("ascii")


def decode_handle(text: str) -> Handle | None:
    """The handle in `text`; None when it is not one of ours."""
    if len(text) != _TEXT_LENGTH or not text.isascii():
        return None
    try:
        packed = base64.b64decode(text, altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    if len(packed) != _LAYOUT.size:
        return None
    version, queue_id, queue_offset, delivery_id = _LAYOUT.unpack(packed)
    return Handle(queue_id, queue_offset, delivery_id) if version == _VERSION else None
