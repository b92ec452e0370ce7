"""What of a real broker's store waits for parts of a broker that are not built here yet.

Such messages stay in the log, for the real broker to deliver; an import says how many they are. Sources of the
formats: Apache RocketMQ's `DelayOffsetSerializeWrapper` (delayOffset.json), `TimerCheckpoint` (timercheck).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal.replay import records_from
from broker_gateway.migration.check_points import REVIVE_PREFIX, TIMER_TOPIC
from broker_gateway.migration.rocketmq_files import CONFIG_FOLDER, quoted_keys
from store.message_store import MessageStore

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
_HALF_GROUP = "CID_RMQ_SYS_TRANS"
_LONG = struct.Struct(">q")
_REMEDY = "they stay in the log; have the real broker deliver them before, or go back to it for them"


def waiting_messages(store: MessageStore, root: Path, offsets: Mapping[QueueKey, int]) -> list[str]:
    """A line for each kind of message that waits; none when nothing does. `offsets` are consumerOffset.json's."""
    return [
        f"{count} {what}: not delivered by this broker; {_REMEDY}"
        for count, what in (
            (_delayed(store, root), f"messages wait in {SCHEDULE_TOPIC} for their delay level"),
            (_timers(store, root), "messages wait for the timer"),
            (_half(store, offsets), "half messages of transactions, at most, wait for their end"),
        )
        if count
    ]


def _delayed(store: MessageStore, root: Path) -> int:
    path = root / CONFIG_FOLDER / "delayOffset.json"
    try:
        table = json.loads(quoted_keys(path.read_text()))["offsetTable"]
        delivered = {int(level) - 1: int(offset) for level, offset in table.items()}
    except FileNotFoundError:
        delivered = {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        delivered = {}  # counts all: too many rather than none
    return sum(
        max(store.index.max_offset(SCHEDULE_TOPIC, queue_id) - delivered.get(queue_id, 0), 0)
        for queue_id in _queues(store, SCHEDULE_TOPIC)
    )


def _timers(store: MessageStore, root: Path) -> int:
    """Messages that were not due when the timer last looked; what POP puts there is taken elsewhere."""
    try:
        (looked_ms,) = _LONG.unpack_from((root / CONFIG_FOLDER / "timercheck").read_bytes())
    except (OSError, struct.error):
        looked_ms = 0
    count = 0
    for queue_id in _queues(store, TIMER_TOPIC):
        for _, record in records_from(store, TIMER_TOPIC, queue_id, 0):
            properties = record.properties_map()
            due = properties.get("TIMER_OUT_MS", "")
            if not properties.get("REAL_TOPIC", "").startswith(REVIVE_PREFIX):
                count += not due.isdigit() or int(due) > looked_ms
    return count


def _half(store: MessageStore, offsets: Mapping[QueueKey, int]) -> int:
    return sum(
        max(store.index.max_offset(HALF_TOPIC, queue_id) - done, 0)
        for queue_id in _queues(store, HALF_TOPIC)
        if (done := offsets.get(QueueKey(_HALF_GROUP, HALF_TOPIC, queue_id), 0)) >= 0
    )


def _queues(store: MessageStore, topic: str) -> Iterator[int]:
    return (queue_id for name, queue_id in store.index.queues() if name == topic)
