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

import binascii
import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_LAYOUT = struct.Struct(">BIQQ")
_BEHIND_THE_VERSION = struct.Struct(">xIQQ")
_VERSION = 1
TEXT_LENGTH = (_LAYOUT.size * 4 + 2) // 3
assert _LAYOUT.size == 21
assert TEXT_LENGTH == 28
_PATTERN = "A[Q-Za-f][A-Za-z0-9_-]{26}"
_written_by_us = re.compile(_PATTERN).fullmatch
_all_written_by_us = re.compile(f"(?:{_PATTERN})*+").fullmatch
"""The first 12 bits are A and one of Q to f where the first byte is 1."""
_TO_URL, _TO_STANDARD = bytes.maketrans(b"+/", b"-_"), bytes.maketrans(b"-_", b"+/")


class Handle(NamedTuple):
    """A decoded receipt handle."""

    queue_id: int
    queue_offset: int
    delivery_id: int


def new_delivery_id() -> int:
    """Of a delivery that begins."""
    return int.from_bytes(os.urandom(8), "big")


def pack_handle(queue_id: int, queue_offset: int, delivery_id: int) -> bytes:
    """The 21 bytes of a handle."""
    return _LAYOUT.pack(_VERSION, queue_id, queue_offset, delivery_id)


def encode_handle(queue_id: int, queue_offset: int, delivery_id: int) -> str:
    """The text of a handle, 28 characters."""
    packed = pack_handle(queue_id, queue_offset, delivery_id)
    return binascii.b2a_base64(packed, newline=False).translate(_TO_URL).decode()


def decode_handle(text: str) -> Handle | None:
    """The handle in `text`; None when it is not one of ours."""
    found = decode_handles((text,))[0]
    return None if found is None else Handle(*found)


def decode_handles(texts: Sequence[str]) -> list[tuple[int, int, int] | None]:
    """Of each of `texts` what a `Handle` has, or None when it is not one of ours."""
    if set(map(len, texts)) == {TEXT_LENGTH} and _all_written_by_us(together := "".join(texts)):
        return list(_unpacked(together))
    fits = list(map(_written_by_us, texts))
    unpacked = _unpacked("".join([text for text, fit in zip(texts, fits, strict=True) if fit]))
    return [next(unpacked) if fit else None for fit in fits]


def _unpacked(together: str) -> Iterator[tuple[int, int, int]]:
    """Of handles one behind the other; 28 characters are 21 whole bytes."""
    return _BEHIND_THE_VERSION.iter_unpack(binascii.a2b_base64(together.encode().translate(_TO_STANDARD)))
