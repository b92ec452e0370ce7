"""Stores with very many messages that wait for their delivery time, written without a broker."""

from __future__ import annotations

import time
from pathlib import Path

from broker_gateway.deferred.put_off import DELIVER_MS, as_timer
from lakebroker_testing.logs import HOST, open_store
from store.log.record import PendingRecord, encode_properties

SEGMENT = 1 << 28
"""Bytes of a segment; the broker that runs over the store needs the same (`mappedFileSizeCommitLog`)."""
_BODY = b"x" * 100
_AT_A_TIME = 500


def write_timers(
    store: Path, topic: str, count: int, first_due_ms: float, spread_ms: float, name: str
) -> None:
    """Adds messages to the store of a broker that does not run. They fall due one behind the other; their ids begin with
    `name`."""
    opened = open_store(store, "broker-a", cluster="DefaultCluster", segment_size=SEGMENT)
    now = time.time_ns() // 1_000_000
    step = spread_ms / max(count, 1)
    for begin in range(0, count, _AT_A_TIME):
        opened.append(
            [
                _timer(topic, f"{name}{number:024X}", number % 8, now, int(first_due_ms + number * step))
                for number in range(begin, min(begin + _AT_A_TIME, count))
            ]
        )
    opened.close()


def _timer(topic: str, message_id: str, queue_id: int, now: int, due: int) -> PendingRecord:
    told = {
        "UNIQ_KEY": message_id,
        DELIVER_MS: str(due),
        "__BORNHOST": "127.0.0.1",
        "TRACE_ON": "true",
        "MSG_REGION": "DefaultRegion",
        "WAIT": "true",
    }
    return as_timer(PendingRecord(topic, queue_id, _BODY, encode_properties(told), now, HOST.packed), due)
