"""What counts when messages are erased by key or id: these, and every copy that a broker made of them. For the broker's log and the
lake's tables alike.

A copy has the keys of its message and its id, in topics of brokers' copies under other names, too: what waits for its time or the end
of its transaction, retries, dead letters. So a record counts that

| has | of topic |
|---|---|
| one of the keys, or of the message ids that were asked for | the one that was asked for: it is in it, or a copy that says it came from it |
| the id of one that was found so, or, where no topic was asked for, one of the ids | any |
| such an id among its keys | that of clients' traces, or a copy from there: it tells of messages by their ids and keys, of several at once, and goes as a whole |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from store.trace_topics import is_trace_topic

ORIGIN_PROPERTY = "LB_ORIGIN"
ID = "UNIQ_KEY"
KEYS = "KEYS"
ORIGIN_IDS = ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID")
"""Properties that name the message that a record in a topic of copies is one of."""
FROM_TOPIC = ("REAL_TOPIC", "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC")
"""Properties that name the topic that a copy is of; so does `ORIGIN_PROPERTY`."""
_COPIES = (
    "%RETRY%",
    "%DLQ%",
    "SCHEDULE_TOPIC_XXXX",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "RMQ_SYS_",
    "rmq_sys_",
)
_MOST_DIGITS = 20  # of 64 bits


class Origin(NamedTuple):
    """Where a copy came from. No `group`: it is none's delivery, but what the broker puts off (`deferred/`)."""

    queue_id: int
    queue_offset: int
    attempt: int
    group: str
    topic: str

    def encode(self) -> str:
        """The value of `LB_ORIGIN`."""
        return (
            f"{self.queue_id}:{self.queue_offset}:{self.attempt}:{len(self.group)}:{self.group}{self.topic}"
        )


def decode_origin(text: str) -> Origin | None:
    """Reads `LB_ORIGIN`; None when it is not well formed."""
    parts = text.split(":", 4)
    if len(parts) != 5 or not all(
        part.isascii() and part.isdigit() and len(part) <= _MOST_DIGITS for part in parts[:4]
    ):
        return None
    queue_id, queue_offset, attempt, length = (int(part) for part in parts[:4])
    names = parts[4]
    if length > len(names):
        return None
    return Origin(queue_id, queue_offset, attempt, names[:length], names[length:])


class Meant:
    """What an erasure is about. `message_id` of a record: its `ID`, else what is made of its store host and offset."""

    def __init__(
        self, topic: str, keys: Collection[str], message_ids: Collection[str], traced: Collection[str] = ()
    ) -> None:
        """`traced`: ids of messages that are elsewhere, of which traces alone count."""
        self.topic = topic
        self.keys = frozenset(keys)
        self.asked = frozenset(message_ids)
        self.traced = frozenset(traced)
        self.known = set() if topic else set(message_ids)
        """Ids of which every record counts."""

    def counts(self, topic: str, message_id: str, properties: Mapping[str, str]) -> bool:
        """Whether a record does; the id of one that was asked for is known from then on."""
        ids, keys, topics = (
            {message_id},
            properties.get(KEYS, "").split(" "),
            list(_topics(topic, properties)),
        )
        if is_of_copies(topic):
            ids.update(properties[name] for name in ORIGIN_IDS if name in properties)
        named = not (self.keys.isdisjoint(keys) and self.asked.isdisjoint(ids))
        if named and self.topic in topics:
            self.known.add(message_id)
            return True
        traced = not (self.known.isdisjoint(keys) and self.traced.isdisjoint(keys))
        traces = traced and any(map(is_trace_topic, topics))
        return traces or not self.known.isdisjoint(ids)

    def is_of_topic(self, topic: str, properties: Mapping[str, str]) -> bool:
        """Whether a record is of the topic that was asked for, if one was."""
        return not self.topic or self.topic in _topics(topic, properties)


def is_of_copies(topic: str) -> bool:
    """Whether brokers put copies there."""
    return topic.startswith(_COPIES)


def _topics(topic: str, properties: Mapping[str, str]) -> Iterator[str]:
    """The topic that a record is in, and those that it says it came from."""
    yield topic
    for name in FROM_TOPIC:
        if name in properties:
            yield properties[name]
    origin = decode_origin(properties.get(ORIGIN_PROPERTY, ""))
    if origin is not None:
        yield origin.topic
