"""Attributes of topics and groups: which there are, what each may be, and how a change of them is written.

A change is `+name` with a value, or `-name`. What a new topic or group has is only added; an attribute that is not
changeable is given then or never. Names and limits are those of RocketMQ 5.5.0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from broker_gateway.metadata.kept_fields import ConfigurationError, shown
from broker_gateway.metadata.message_types import TOPIC_MESSAGE_TYPES

MESSAGE_TYPE = "message.type"
"""Of a topic: which messages it takes."""
QUEUE_TYPE = "queue.type"
BATCH_QUEUES = "BatchCQ"
_LONGEST = 255
"""Characters of a text."""
_MOST = (1 << 63) - 1


class Attribute(Protocol):
    """What values an attribute may have, and whether it may be changed later."""

    changeable: bool

    def expected(self, value: str) -> str | None:
        """What is allowed; None: that value is."""


class OneOf:
    """One of some words."""

    def __init__(self, *words: str, changeable: bool = True) -> None:
        self.changeable = changeable
        self._words = words

    def expected(self, value: str) -> str | None:
        return None if value in self._words else f"use one of {', '.join(self._words)}"


class Number:
    """A whole number."""

    changeable = True

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most

    def expected(self, value: str) -> str | None:
        if re.fullmatch(r"[+-]?[0-9]{1,19}", value) and self._least <= int(value) <= self._most:
            return None
        return f"a number of {self._least} to {self._most} is allowed"


class Boolean:
    """True or false, in capitals or not."""

    changeable = True

    def expected(self, value: str) -> str | None:
        return None if value.lower() in ("true", "false") else "use one of true, false"


class Text:
    """A text, which may stand in a list of attributes."""

    changeable = True

    def expected(self, value: str) -> str | None:
        if value and len(value) <= _LONGEST and value.isprintable() and not re.search(r"[ ,=]", value):
            return None
        return f"1 to {_LONGEST} printable characters without space, comma and = are allowed"


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    MESSAGE_TYPE: OneOf(*TOPIC_MESSAGE_TYPES),
    QUEUE_TYPE: OneOf("SimpleCQ", BATCH_QUEUES, changeable=False),
    "cleanup.policy": OneOf("DELETE", "COMPACTION", changeable=False),
    "reserve.time": Number(-1, _MOST),
    "lite.topic.expiration": Number(-1, 30 * 24 * 60),
}
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {
    "priority.factor": Number(0, 100),
    "lite.bind.topic": Text(),
    "lite.sub.model": OneOf("Shared", "Exclusive"),
    "lite.sub.reset.offset.exclusive": Boolean(),
    "lite.sub.reset.offset.unsubscribe": Boolean(),
    "lite.sub.client.quota": Number(-1, _MOST),
    "lite.sub.client.max.event.cnt": Number(10, _MOST),
    "lite.sub.wildcard": Text(),
}


def altered(
    known: Mapping[str, Attribute], current: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """The attributes after these changes; `current` is None of what is new. Raises ConfigurationError."""
    after = dict(current or {})
    seen: set[str] = set()
    for change, value in changes.items():
        sign, name = change[:1], change[1:]
        if sign not in ("+", "-") or not name or "+" in name or "-" in name:
            raise ConfigurationError(
                f"attribute {shown(change)} is written wrongly; write +name=value or -name"
            )
        if name in seen:
            raise ConfigurationError(f"attribute {shown(name)} is changed twice; name it once")
        seen.add(name)
        if sign == "-" and current is None:
            raise ConfigurationError(
                f"attribute {shown(name)} cannot be removed from what is new; write +{name[:80]}=value"
            )
        if sign == "-" and name not in after:
            raise ConfigurationError(f"attribute {shown(name)} is not there, so it cannot be removed")
        _check(known, name, value if sign == "+" else None, new=current is None)
        if sign == "+":
            after[name] = value
        else:
            del after[name]
    return after


def _check(known: Mapping[str, Attribute], name: str, value: str | None, *, new: bool) -> None:
    attribute = known.get(name)
    if attribute is None:
        raise ConfigurationError(f"attribute {shown(name)} is unsupported; use {', '.join(known)}")
    if not new and not attribute.changeable:
        raise ConfigurationError(f"attribute {name} cannot be changed; it is given at the creation or never")
    expected = None if value is None else attribute.expected(value)
    if expected is not None:
        raise ConfigurationError(f"{name} is {shown(value)}; {expected}")
