"""Checks of what comes in a request, each with the status of the public API that the real proxy answers."""

from __future__ import annotations

from functools import lru_cache

from broker_gateway.metadata.names import (
    CONTROL_CHARACTER,
    DLQ_PREFIX,
    GROUP_MAX_LENGTH,
    NAME_PATTERN,
    RETRY_PREFIX,
    RETRY_TOPIC_MAX_LENGTH,
    TOPIC_MAX_LENGTH,
    is_system_group,
)
from broker_gateway.metadata.system_topics import is_system_topic
from broker_gateway.service.context import CallContext
from broker_gateway.service.status import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.google.protobuf.duration_pb2 import Duration

CLIENT_ID_MAX_LENGTH = 255


def shown(text: str, limit: int = 80) -> str:
    """A wrong value as a message shows it, cut at `limit` characters."""
    return repr(text if len(text) <= limit else text[:limit] + "…")


def client_id_of(context: CallContext) -> str:
    """The caller's id; CLIENT_ID_REQUIRED without one, BAD_REQUEST beyond 255 characters."""
    client_id = context.metadata.get("x-mq-client-id", "")
    if not client_id.strip():
        raise ServiceError(
            pb.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing; every call must carry it"
        )
    if len(client_id) > CLIENT_ID_MAX_LENGTH:
        raise ServiceError(
            pb.BAD_REQUEST,
            f"x-mq-client-id has {len(client_id)} characters, at most {CLIENT_ID_MAX_LENGTH} are taken",
        )
    return client_id


def resource_name(resource: pb.Resource) -> str:
    """A resource's full name: `namespace%name` where it has a namespace."""
    return f"{resource.resource_namespace}%{resource.name}" if resource.resource_namespace else resource.name


def topic_of(resource: pb.Resource, cluster: str, broker: str) -> str:
    """A topic that clients may use; ILLEGAL_TOPIC otherwise."""
    return _topic(resource.resource_namespace, resource.name, cluster, broker)


@lru_cache(maxsize=65536)
def _topic(namespace: str, name: str, cluster: str, broker: str) -> str:
    topic = f"{namespace}%{name}" if namespace else name
    if not name.strip():
        raise ServiceError(pb.ILLEGAL_TOPIC, "the topic is empty; name one")
    limit = RETRY_TOPIC_MAX_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_MAX_LENGTH
    if len(topic) > limit:
        raise ServiceError(
            pb.ILLEGAL_TOPIC, f"topic {shown(topic)} has {len(topic)} characters, at most {limit} are allowed"
        )
    if NAME_PATTERN.fullmatch(topic) is None:
        raise ServiceError(
            pb.ILLEGAL_TOPIC, f"topic {shown(topic)} may hold only letters, digits and any of % | - _"
        )
    if is_system_topic(topic, cluster, broker):
        raise ServiceError(pb.ILLEGAL_TOPIC, f"cannot access system topic {shown(topic)}")
    return topic


def group_of(resource: pb.Resource) -> str:
    """A consumer group that clients may use; ILLEGAL_CONSUMER_GROUP otherwise."""
    return _group(resource.resource_namespace, resource.name)


@lru_cache(maxsize=65536)
def _group(namespace: str, name: str) -> str:
    group = f"{namespace}%{name}" if namespace else name
    if not name.strip():
        raise ServiceError(pb.ILLEGAL_CONSUMER_GROUP, "the consumer group is empty; name one")
    if len(group) > GROUP_MAX_LENGTH:
        raise ServiceError(
            pb.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {shown(group)} has {len(group)} characters, at most {GROUP_MAX_LENGTH} are allowed",
        )
    if NAME_PATTERN.fullmatch(group) is None:
        raise ServiceError(
            pb.ILLEGAL_CONSUMER_GROUP,
            f"consumer group {shown(group)} may hold only letters, digits and any of % | - _",
        )
    if is_system_group(group):
        raise ServiceError(pb.ILLEGAL_CONSUMER_GROUP, f"cannot use system consumer group {shown(group)}")
    return group


def check_text(value: str, what: str, code: pb.Code) -> None:
    """Refuses control characters with `code`."""
    if CONTROL_CHARACTER.search(value):
        raise ServiceError(code, f"{what} {shown(value)} must not contain control characters")


def check_tag(tag: str) -> None:
    """ILLEGAL_MESSAGE_TAG for a tag that is blank, or holds `|` or a control character."""
    if not tag:
        return
    if not tag.strip():
        raise ServiceError(pb.ILLEGAL_MESSAGE_TAG, "the tag is only white space; leave it out or name one")
    if "|" in tag:
        raise ServiceError(pb.ILLEGAL_MESSAGE_TAG, f"tag {shown(tag)} must not contain '|'")
    check_text(tag, "tag", pb.ILLEGAL_MESSAGE_TAG)


def check_key(key: str) -> None:
    """ILLEGAL_MESSAGE_KEY for a key that is blank or holds a control character."""
    if key and not key.strip():
        raise ServiceError(pb.ILLEGAL_MESSAGE_KEY, "a key is only white space; leave it out or name one")
    check_text(key, "key", pb.ILLEGAL_MESSAGE_KEY)


def duration_ms(duration: Duration, what: str, code: pb.Code) -> int:
    """A duration in ms; a malformed one is refused with `code`."""
    if not (-315_576_000_000 <= duration.seconds <= 315_576_000_000) or abs(duration.nanos) > 999_999_999:
        raise ServiceError(code, f"{what} of {duration.seconds} s and {duration.nanos} ns is not a duration")
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def check_invisible_ms(value: int, minimum: int, maximum: int) -> int:
    """ILLEGAL_INVISIBLE_TIME outside of `minimum` to `maximum` ms, in the words that clients of the original look for."""
    if value < minimum:
        raise ServiceError(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {minimum}")
    if value > maximum:
        raise ServiceError(pb.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {maximum}")
    return value
