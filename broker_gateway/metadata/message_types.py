"""A topic's `message.type`, as RocketMQ's tools name it, and the types of the public API that it stands for."""

from __future__ import annotations

from broker_gateway.metadata.catalog import Topic

UNSPECIFIED = "MESSAGE_TYPE_UNSPECIFIED"
TOPIC_MESSAGE_TYPES = {
    "UNSPECIFIED": (UNSPECIFIED,),
    "NORMAL": ("NORMAL",),
    "FIFO": ("FIFO",),
    "DELAY": ("DELAY",),
    "TRANSACTION": ("TRANSACTION",),
    "LITE": ("LITE",),
    "PRIORITY": ("PRIORITY",),
    "MIXED": (),
}
"""No message is of the unspecified type: such a topic takes none over gRPC, as at the original's proxy."""
MESSAGE_TYPES = tuple(kind for kind, accepted in TOPIC_MESSAGE_TYPES.items() if accepted == (kind,))
"""What a message may be."""


def message_types_of(name: str) -> tuple[str, ...]:
    """What a topic with this `message.type` accepts; everything when nobody knows it."""
    return TOPIC_MESSAGE_TYPES.get(name, ())


def message_type(topic: Topic) -> str:
    """Of a topic that accepts every type, or several, MIXED."""
    kinds = topic.accept_message_types
    if len(kinds) != 1:
        return "MIXED"
    return "UNSPECIFIED" if kinds[0] == UNSPECIFIED else kinds[0]


def by_priority(topic: Topic) -> bool:
    """Whether a topic takes PRIORITY messages alone."""
    return topic.accept_message_types == ("PRIORITY",)


def has_lite_topics(topic: Topic) -> bool:
    """Whether a topic takes LITE messages alone."""
    return topic.accept_message_types == ("LITE",)


def accepts(topic: Topic, kind: str) -> bool:
    """Whether messages of that type may be sent to `topic`."""
    return not topic.accept_message_types or kind in topic.accept_message_types
