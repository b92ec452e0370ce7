"""A topic's configuration as RocketMQ's programs and files have it: names, defaults, what is allowed.

| fields | here |
|---|---|
| `topicName`, `readQueueNums`, `writeQueueNums`, `perm`, `order` | the topic's own |
| the attribute `message.type` | `Topic.accept_message_types` |
| other attributes, `topicFilterType`, `topicSysFlag`, and what nobody here knows | kept in `Topic.others`, and shown |

`Topic.others` has no fields that are as in `_DEFAULTS`. A topic of a real broker may have no `message.type`, or one that
nobody here knows: it takes every message then, and its attributes in `Topic.others` have null, or that word, until
somebody says what it takes. Defaults are those of RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker_gateway.metadata.attributes import (
    BATCH_QUEUES,
    MESSAGE_TYPE,
    QUEUE_TYPE,
    TOPIC_ATTRIBUTES,
    altered,
)
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.kept_fields import (
    ConfigurationError,
    fields_of,
    same,
    shown,
    shown_fields,
    text_of,
)
from broker_gateway.metadata.message_types import TOPIC_MESSAGE_TYPES, message_type, message_types_of

OWN_FIELDS = frozenset({"topicName", "readQueueNums", "writeQueueNums", "perm", "order"})
FILTER_TYPE, SYSTEM_FLAG = "topicFilterType", "topicSysFlag"
_FILTER_TYPES = ("SINGLE_TAG", "MULTI_TAG")
_DEFAULTS: Mapping[str, Any] = {"attributes": {}, FILTER_TYPE: _FILTER_TYPES[0], SYSTEM_FLAG: 0}


def configuration(topic: Topic, *, exact: bool = False) -> dict[str, Any]:
    """Every field of the topic; `exact` also those numbers that JSON does not have, as a file had them."""
    return {
        **_DEFAULTS,
        **(fields_of if exact else shown_fields)(topic.others),
        "attributes": attributes(topic),
        "order": topic.order,
        "perm": topic.permission,
        "readQueueNums": topic.read_queues,
        "topicName": topic.name,
        "writeQueueNums": topic.write_queues,
    }


def attributes(topic: Topic) -> dict[str, Any]:
    """The topic's attributes, of which `message.type` says what it accepts."""
    kept = _kept_attributes(fields_of(topic.others)) if topic.others else {}
    found = {name: value for name, value in kept.items() if name != MESSAGE_TYPE}
    if MESSAGE_TYPE not in kept or topic.accept_message_types:
        found[MESSAGE_TYPE] = message_type(topic)
    elif kept[MESSAGE_TYPE] is not None:
        found[MESSAGE_TYPE] = kept[MESSAGE_TYPE]
    return found


def lite_topic_minutes(topic: Topic) -> int:
    """How long a lite topic of a topic lives after its last message, minutes; -1: for ever."""
    text = attributes(topic).get("lite.topic.expiration")
    return int(text) if text else -1


def filter_type(topic: Topic) -> str:
    """How the topic's messages are filtered by tag, in RocketMQ's words; kept and shown only."""
    found = fields_of(topic.others).get(FILTER_TYPE) if topic.others else None
    return found if isinstance(found, str) else _FILTER_TYPES[0]


def system_flag(topic: Topic) -> int:
    """RocketMQ's bits about units; kept and shown only."""
    found = fields_of(topic.others).get(SYSTEM_FLAG) if topic.others else None
    return found if type(found) is int else 0


def further(topic: Topic) -> dict[str, Any]:
    """The fields that nobody here knows."""
    if not topic.others:
        return {}
    return {name: value for name, value in shown_fields(topic.others).items() if name not in _DEFAULTS}


def unknown(members: Mapping[str, Any]) -> dict[str, Any]:
    """Of these fields those that nobody here knows."""
    return {
        name: value for name, value in members.items() if name not in OWN_FIELDS and name not in _DEFAULTS
    }


def has_batch_queues(topic: Topic) -> bool:
    """Whether a real broker keeps the topic's queues as batches."""
    return bool(topic.others) and attributes(topic).get(QUEUE_TYPE) == BATCH_QUEUES


def with_message_types(topic: Topic, kinds: tuple[str, ...]) -> Topic:
    """The topic, accepting these types; empty: every type."""
    fields = fields_of(topic.others)
    kept = _kept_attributes(fields)
    if MESSAGE_TYPE in kept:
        fields["attributes"] = {name: value for name, value in kept.items() if name != MESSAGE_TYPE}
    others = text_of(f"topic {topic.name}", _further(fields), strict=False)
    return replace(topic, accept_message_types=kinds, others=others)


def changed(
    topic: Topic, known: Topic | None, changes: Mapping[str, str], fields: Mapping[str, Any], *, mixed: bool
) -> Topic:
    """The topic that an administrator asks for, with these changes of attributes, and these fields that are not its own;
    those that are not among them, and that nobody here knows, stay as `known` has them. MIXED only if it may be.

    Raises ConfigurationError.
    """
    what = f"topic {topic.name}"
    text_of(what, fields, strict=True)
    if fields.get(FILTER_TYPE, _FILTER_TYPES[0]) not in _FILTER_TYPES:
        raise ConfigurationError(
            f"{FILTER_TYPE} of {what} is {shown(fields[FILTER_TYPE])}; use one of {', '.join(_FILTER_TYPES)}"
        )
    after = altered(TOPIC_ATTRIBUTES, None if known is None else attributes(known), changes)
    if changes.get(f"+{QUEUE_TYPE}") == BATCH_QUEUES:
        raise ConfigurationError(
            f"{QUEUE_TYPE} is {BATCH_QUEUES}, and queues of batches are not served here; leave it out"
        )
    if changes.get(f"+{MESSAGE_TYPE}") == "MIXED" and not mixed:
        raise ConfigurationError(
            "MIXED message type is not supported; set enableMixedMessageType=true to allow it"
        )
    before = {} if known is None else fields_of(known.others)
    kept = {name: value for name, value in before.items() if name not in _DEFAULTS}
    kept |= {name: value for name, value in fields.items() if value is not None}
    types = known.accept_message_types if known is not None else ("NORMAL",)
    asked = any(change[1:] == MESSAGE_TYPE for change in changes)
    if asked:
        types = message_types_of(after.get(MESSAGE_TYPE, "NORMAL"))
    after.pop(MESSAGE_TYPE, None)
    if not asked and MESSAGE_TYPE in (attributes_before := _kept_attributes(before)):
        after[MESSAGE_TYPE] = attributes_before[MESSAGE_TYPE]
    kept["attributes"] = after
    others = text_of(what, _further(kept), strict=False)
    return replace(topic, accept_message_types=types, others=others)


def imported(name: str, row: Mapping[str, Any]) -> tuple[tuple[str, ...], str, list[str]]:
    """Of a topic in a real broker's file: what it accepts, `Topic.others`, and what of it has no effect.

    Raises ConfigurationError for what makes no sense, or is too much.
    """
    found = row.get("attributes") or {}
    if not isinstance(found, dict):
        raise ConfigurationError(f"attributes of {name} is {shown(found)}, expected an object")
    kind = found.get(MESSAGE_TYPE)
    accepted = TOPIC_MESSAGE_TYPES.get(kind) if isinstance(kind, str) else None
    kept = {attribute: value for attribute, value in found.items() if attribute != MESSAGE_TYPE}
    if accepted is None:
        kept[MESSAGE_TYPE] = kind
    problems = []
    if kind is not None and accepted is None:
        problems.append(
            f"topic {name}: {MESSAGE_TYPE} {shown(kind)} is unknown; it is kept, and every type is taken"
        )
    if found.get(QUEUE_TYPE) == BATCH_QUEUES:
        problems.append(
            f"topic {name}: {QUEUE_TYPE} {BATCH_QUEUES} is kept, its batches are not delivered here, and the store cannot "
            "go back before the topic is deleted"
        )
    others = text_of(f"topic {name}", _further({**row, "attributes": kept}), strict=False)
    return accepted or (), others, problems


def _kept_attributes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Of the fields of `Topic.others`, which a lake may have from anywhere."""
    found = fields.get("attributes")
    return found if isinstance(found, dict) else {}


def _further(members: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are not the topic's own, and not as in `_DEFAULTS`."""
    return {
        name: value
        for name, value in members.items()
        if name not in OWN_FIELDS
        and not (name in _DEFAULTS and (value is None or same(value, _DEFAULTS[name])))
    }
