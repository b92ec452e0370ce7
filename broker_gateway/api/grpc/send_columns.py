"""The shortcut of a send: a usual request goes from its bytes to columns of the log, in compiled code.

The plain path is `api/grpc/send_checks.py`; `tests/unit/broker_gateway/api/grpc/test_send_columns.py` compares the two.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from broker_gateway.api.grpc.kernels import send_walk
from broker_gateway.api.grpc.kernels.send_row import (
    BODY_LIMIT,
    LIMITS,
    MESSAGE_ID_LENGTH,
    MESSAGE_ID_START,
    NOW,
    PROPERTIES_BYTES,
    PROPERTIES_COUNT,
    RECORD_PROPERTIES,
    REFUSE_EMPTY,
    ROW,
    TOPIC_LENGTH,
    TOPIC_START,
)
from broker_gateway.api.grpc.send_checks import MAX_MESSAGES_A_CALL, Limits, Peer
from broker_gateway.protocol.resource_names import resource_name
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.columns import PendingColumns

_PROPERTIES_BYTES = 1 << 20
"""Of all properties of a call; beyond that it goes the plain path."""
_TOPIC_BYTES = 512
_MOST_PROPERTIES = 1024


class Usual(NamedTuple):
    """A call's records, still without topic and queue, and the ids of its messages."""

    topic: str
    records: PendingColumns
    message_ids: list[bytes]
    body_bytes: int


class SendColumns:
    """Takes requests apart; for one thread. Loading the compiler is the caller's, on a thread that may wait."""

    def __init__(self, limits: Limits) -> None:
        send_walk.warm()
        self._limits = np.zeros(LIMITS, dtype=np.int64)
        self._limits[BODY_LIMIT] = limits.body
        self._limits[PROPERTIES_COUNT] = limits.properties
        self._limits[PROPERTIES_BYTES] = limits.properties_bytes
        self._limits[RECORD_PROPERTIES] = limits.record_properties
        self._limits[REFUSE_EMPTY] = limits.refuse_empty
        self._rows = np.zeros((MAX_MESSAGES_A_CALL, ROW), dtype=np.int64)
        self._properties = np.zeros(_PROPERTIES_BYTES, dtype=np.uint8)
        self._seen = np.zeros(_MOST_PROPERTIES, dtype=np.uint64)

    def take(self, request: bytes, peer: Peer, now: int) -> Usual | None:
        """The request's records; None when the plain path has to look at it. `now` in ms."""
        self._limits[NOW] = now
        count, used, bodies = send_walk.walk(
            request, self._limits, peer.text, self._rows, self._properties, send_walk.RESERVED, self._seen
        )
        if count <= 0:
            return None
        rows = self._rows[:count].copy()
        listed = rows.tolist()
        start, length = listed[0][TOPIC_START], listed[0][TOPIC_LENGTH]
        topic = _topic(request[start : start + length]) if length <= _TOPIC_BYTES else None
        if topic is None:
            return None
        message_ids = [
            request[row[MESSAGE_ID_START] : row[MESSAGE_ID_START] + row[MESSAGE_ID_LENGTH]] for row in listed
        ]
        properties = self._properties[:used].tobytes()
        records = PendingColumns("", 0, peer.packed, request, properties, rows, bodies + used, count)
        return Usual(topic, records, message_ids, bodies)


@lru_cache(maxsize=8192)
def _topic(encoded: bytes) -> str | None:
    """The full name in an encoded Resource; None when it is none, or has no name."""
    try:
        resource = pb.Resource.FromString(encoded)
    except DecodeError:
        return None
    return resource_name(resource) if resource.name.strip() else None
