"""Where a copied message came from (`messages.origin`): each value right, or null where the record does not say.

| copy | says |
|---|---|
| lakebroker's (`LB_ORIGIN`) | everything |
| a real broker's dead letter, its copy in a retry topic, or one of these that waits for a delay level | topic (RETRY_TOPIC, DLQ_ORIGIN_TOPIC), group (ORIGIN_GROUP, the names of topics), attempts (RECONSUMETIMES); no queue |
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

DEAD_LETTERS, RETRIES = "%DLQ%", "%RETRY%"
_WAITING = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")
"""Where messages wait for the time to go to REAL_TOPIC."""
FOUND = (
    b"LB_ORIGIN",
    b"RETRY_TOPIC",
    b"DLQ_ORIGIN_TOPIC",
    b"ORIGIN_GROUP",
    b"REAL_TOPIC",
)
"""Properties that origins are made of."""
_NUMBERS = re.compile(r"(\d{1,10}):(\d{1,19}):(\d{1,10}):(\d{1,9}):", re.ASCII)
_MOST_INT, _MOST_LONG = (1 << 31) - 1, (1 << 63) - 1
Value = dict[str, object]


def origin(topic: str, properties: Mapping[bytes, str | None], reconsume_times: int) -> Value | None:
    """The origin of one record; `properties` holds those of `FOUND`. None for what is no copy."""
    moved = properties[b"LB_ORIGIN"]
    if moved is not None:
        return _moved(moved)
    copy = properties[b"REAL_TOPIC"] or "" if topic in _WAITING else topic
    if not copy.startswith((DEAD_LETTERS, RETRIES)):
        return None
    group, source = _names(copy, properties)
    if source is None and (group is None or reconsume_times <= 0):
        return None  # sent to that topic like to any other, or nothing is known
    return {
        "topic": source,
        "queue_id": None,
        "queue_offset": None,
        "consumer_group": group,
        "attempt": reconsume_times if reconsume_times > 0 else None,
    }


def _moved(value: str) -> Value | None:
    """`queueId:queueOffset:attempt:characters of group:group topic`, as `broker_gateway/delivery/moves.py` writes it."""
    found = _NUMBERS.match(value)
    if found is None:
        return None
    queue_id, queue_offset, attempt, length = (int(number) for number in found.groups())
    names = value[found.end() :]
    if max(queue_id, attempt) > _MOST_INT or queue_offset > _MOST_LONG or length > len(names):
        return None
    return {
        "topic": names[length:],
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "consumer_group": names[:length],
        "attempt": attempt,
    }


def may_be_copies(topics: pa.StringArray) -> pa.BooleanArray:
    """Topics whose records may have an origin without LB_ORIGIN."""
    begun = pc.or_(pc.starts_with(topics, DEAD_LETTERS), pc.starts_with(topics, RETRIES))
    return pc.or_(pc.is_in(topics, pa.array(_WAITING)), begun)


def _names(copy: str, properties: Mapping[bytes, str | None]) -> tuple[str | None, str | None]:
    """Group and topic of the original, from the name of the copy's topic and its properties."""
    group = properties[b"ORIGIN_GROUP"]
    source = properties[b"RETRY_TOPIC"] or properties[b"DLQ_ORIGIN_TOPIC"]
    if copy.startswith(DEAD_LETTERS):
        group = copy.removeprefix(DEAD_LETTERS)
        if source is not None and source.startswith(RETRIES):
            source = _topic_of_retry(source, group)  # popped from there
        return group, source
    if group is None:
        name = copy.removeprefix(RETRIES)
        group = name.partition("+")[0] if "+" in name else name if source is not None else None
    return group, source or (_topic_of_retry(copy, group) if group else None)


def _topic_of_retry(retry_topic: str, group: str) -> str | None:
    """The topic in `%RETRY%group_topic` or `%RETRY%group+topic`; None where none is named."""
    name = retry_topic.removeprefix(RETRIES)
    return name[len(group) + 1 :] or None if name.startswith((f"{group}+", f"{group}_")) else None
