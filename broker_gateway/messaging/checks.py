"""Checks of what comes in a call, each with the reason that the real proxy gives."""

from __future__ import annotations

from functools import lru_cache

from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.names import (
    CONTROL_CHARACTER,
    DLQ_PREFIX,
    GROUP_MAX_LENGTH,
    LITE_TOPIC_PATTERN,
    NAME_PATTERN,
    RETRY_PREFIX,
    RETRY_TOPIC_MAX_LENGTH,
    TOPIC_MAX_LENGTH,
    is_system_group,
)
from broker_gateway.metadata.system_topics import is_system_topic


def shown(text: str, limit: int = 80) -> str:
    """A wrong value as a message shows it, cut at `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "…")


@lru_cache(maxsize=65536)
def check_topic(topic: str, cluster: str, broker: str) -> None:
    """ILLEGAL_TOPIC for a name that no topic of clients may have."""
    if not topic.strip():
        raise ServiceError(Reason.ILLEGAL_TOPIC, "the topic is empty; name one")
    limit = RETRY_TOPIC_MAX_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_MAX_LENGTH
    if len(topic) > limit:
        raise ServiceError(
            Reason.ILLEGAL_TOPIC,
            f"topic {shown(topic)} has {len(topic)} characters, at most {limit} are allowed",
        )
    if NAME_PATTERN.fullmatch(topic) is None:
        raise ServiceError(
            Reason.ILLEGAL_TOPIC, f"topic {shown(topic)} may hold only letters, digits and any of % | - _"
        )
    if is_system_topic(topic, cluster, broker):
        raise ServiceError(Reason.ILLEGAL_TOPIC, f"cannot access system topic {shown(topic)}")


@lru_cache(maxsize=65536)
def check_group(group: str) -> None:
    """ILLEGAL_CONSUMER_GROUP for a name that no consumer group of clients may have."""
    if not group.strip():
        raise ServiceError(Reason.ILLEGAL_CONSUMER_GROUP, "the consumer group is empty; name one")
    if len(group) > GROUP_MAX_LENGTH:
        raise ServiceError(
            Reason.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {shown(group)} has {len(group)} characters, at most {GROUP_MAX_LENGTH} are allowed",
        )
    if NAME_PATTERN.fullmatch(group) is None:
        raise ServiceError(
            Reason.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {shown(group)} may hold only letters, digits and any of % | - _",
        )
    if is_system_group(group):
        raise ServiceError(Reason.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group {shown(group)}")


def check_text(value: str, what: str, reason: Reason) -> None:
    """Refuses control characters with `reason`."""
    if CONTROL_CHARACTER.search(value):
        raise ServiceError(reason, f"{what} {shown(value)} must not contain control characters")


def check_tag(tag: str) -> None:
    """ILLEGAL_MESSAGE_TAG for a tag that is blank, or holds `|` or a control character."""
    if not tag:
        return
    if not tag.strip():
        raise ServiceError(
            Reason.ILLEGAL_MESSAGE_TAG, "the tag is only white space; leave it out or name one"
        )
    if "|" in tag:
        raise ServiceError(Reason.ILLEGAL_MESSAGE_TAG, f"tag {shown(tag)} must not contain '|'")
    check_text(tag, "tag", Reason.ILLEGAL_MESSAGE_TAG)


def check_key(key: str) -> None:
    """ILLEGAL_MESSAGE_KEY for a key that is blank or holds a control character."""
    if key and not key.strip():
        raise ServiceError(Reason.ILLEGAL_MESSAGE_KEY, "a key is only white space; leave it out or name one")
    check_text(key, "key", Reason.ILLEGAL_MESSAGE_KEY)


def check_lite_topic(name: str, most_bytes: int) -> None:
    """ILLEGAL_LITE_TOPIC for a name that no lite topic may have."""
    if not name.strip():
        raise ServiceError(Reason.ILLEGAL_LITE_TOPIC, "the lite topic is empty; name one")
    size = len(name.encode())
    if size > most_bytes:
        raise ServiceError(
            Reason.ILLEGAL_LITE_TOPIC,
            f"lite topic {shown(name)} has {size} bytes, at most {most_bytes} (maxLiteTopicSize) are taken",
        )
    if LITE_TOPIC_PATTERN.fullmatch(name) is None:
        raise ServiceError(
            Reason.ILLEGAL_LITE_TOPIC, f"lite topic {shown(name)} may hold only letters, digits, - and _"
        )


def check_message_group(group: str, shorter_than: int) -> None:
    """ILLEGAL_MESSAGE_GROUP for one that no FIFO message may have; `shorter_than` is in bytes, 0: any length."""
    if not group.strip():
        raise ServiceError(
            Reason.ILLEGAL_MESSAGE_GROUP,
            "the message group is only white space; name one"
            if group
            else "a FIFO message needs a message group: the messages of a group are consumed in order",
        )
    size = len(group.encode())
    if 0 < shorter_than <= size:
        raise ServiceError(
            Reason.ILLEGAL_MESSAGE_GROUP,
            f"message group {shown(group)} has {size} bytes, fewer than {shorter_than} (maxMessageGroupSize) are taken",
        )
    check_text(group, "message group", Reason.ILLEGAL_MESSAGE_GROUP)


def check_invisible_ms(value: int, minimum: int, maximum: int) -> int:
    """ILLEGAL_INVISIBLE_TIME outside of `minimum` to `maximum` ms, in the words that clients of the original look for."""
    if value < minimum:
        raise ServiceError(Reason.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {minimum}")
    if value > maximum:
        raise ServiceError(Reason.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {maximum}")
    return value
