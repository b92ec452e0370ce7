"""Records as tools are given them: whole, but for the properties that are this broker's own."""

from __future__ import annotations

from broker_gateway.deferred.halves import WAITS_FROM_PROPERTY
from broker_gateway.delivery.moves import REASON_PROPERTY
from store.errors import RecordError
from store.log.copies import ORIGIN_PROPERTY
from store.log.record import PROPERTY_CRC32, decode_record

_OWN = tuple(
    f"{name}\x01".encode() for name in (PROPERTY_CRC32, ORIGIN_PROPERTY, REASON_PROPERTY, WAITS_FROM_PROPERTY)
)
_SIZE_BYTES = 4
_LENGTH_BYTES = 2


def shown_record(data: bytes | memoryview) -> bytes:
    """A record without `__CRC32#`, `LB_ORIGIN`, `LB_REASON` and `LB_WAITS_FROM`, and so shorter; one that cannot be read, as it is."""
    try:
        properties = decode_record(data, verify=False).properties
    except RecordError:
        return bytes(data)
    parts = [part for part in properties.split(b"\x02") if not part.startswith(_OWN)]
    kept = b"\x02".join(parts)
    start = len(data) - len(properties)
    size = start + len(kept)
    head = bytes(data[_SIZE_BYTES : start - _LENGTH_BYTES])
    return size.to_bytes(_SIZE_BYTES, "big") + head + len(kept).to_bytes(_LENGTH_BYTES, "big") + kept
