"""Topics as a broker registers them, and the version of its table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_gateway.protocol import java_json
from broker_gateway.protocol.errors import BodyError
from broker_gateway.protocol.java_json import JsonObject

PERM_WRITE = 2
PERM_READ = 4
_INT32 = 1 << 31
MAX_NAME = 255
"""Characters of a topic's, broker's or cluster's name."""


@dataclass(frozen=True, slots=True)
class DataVersion:
    """Version of a broker's topics; any change makes another one. `timestamp` in ms since the epoch."""

    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "counter": self.counter,
            "stateVersion": self.state_version,
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> DataVersion:
        """Raises BodyError."""
        return cls(
            value.integer("stateVersion", 0), value.integer("timestamp", 0), value.integer("counter", 0)
        )

    def encode(self) -> bytes:
        return java_json.dumps(self.to_json())

    @classmethod
    def decode(cls, data: bytes) -> DataVersion:
        """Raises BodyError."""
        return cls.from_json(JsonObject(java_json.loads(data), "the data version"))


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic on a broker. `perm` is PERM_READ | PERM_WRITE, `topic_sys_flag` 1 unit, 2 subscribed by units.

    `further` are fields that nobody here knows, of a topic's JSON; who reads one leaves them out.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = PERM_READ | PERM_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict)
    further: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.further,
            "attributes": dict(self.attributes),
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> TopicConfig:
        """Raises BodyError."""
        return cls(
            topic_name=checked_name(value.text("topicName"), "topic"),
            read_queue_nums=small(value, "readQueueNums", 16),
            write_queue_nums=small(value, "writeQueueNums", 16),
            perm=small(value, "perm", PERM_READ | PERM_WRITE),
            topic_filter_type=value.text("topicFilterType", "SINGLE_TAG"),
            topic_sys_flag=small(value, "topicSysFlag", 0),
            order=value.boolean("order"),
            attributes=value.text_map("attributes"),
        )

    def to_text(self) -> str:
        """Form in a compressed registration; it has no room for `topic_sys_flag` and `order`."""
        attributes = json.dumps(dict(self.attributes), ensure_ascii=False, separators=(",", ":"))
        numbers = f"{self.read_queue_nums} {self.write_queue_nums} {self.perm}"
        return f"{self.topic_name} {numbers} {self.topic_filter_type} {attributes}"

    @classmethod
    def from_text(cls, text: str) -> TopicConfig:
        """Raises BodyError. Brokers before 5.0 leave the attributes out."""
        parts = text.split(" ", 5)
        if len(parts) < 5:
            raise BodyError(f"topic {text[:80]!r}: name, queues twice, permission and filter type are needed")
        name, read, write, perm, filter_type = parts[:5]
        attributes = {}
        if len(parts) == 6 and parts[5] not in ("", "null", "{}"):
            found = java_json.loads(parts[5].encode("utf-8", "replace"))
            attributes = JsonObject({"attributes": found}, f"topic {name[:80]!r}").text_map("attributes")
        return cls(
            topic_name=checked_name(name, "topic"),
            read_queue_nums=_number(read, name, "readQueueNums"),
            write_queue_nums=_number(write, name, "writeQueueNums"),
            perm=_number(perm, name, "perm"),
            topic_filter_type=filter_type,
            attributes=attributes,
        )


def _number(text: str, topic: str, what: str) -> int:
    """A Java `int` that is not negative, from a topic's text."""
    if text.isascii() and text.isdecimal() and len(text) <= 10 and (number := int(text)) < _INT32:
        return number
    raise BodyError(f"{what} {text[:80]!r} of topic {topic[:80]!r} is not between 0 and {_INT32 - 1}")


def small(value: JsonObject, name: str, default: int) -> int:
    """A Java `int` that is not negative. Raises BodyError."""
    number = value.integer(name, default)
    if not 0 <= number < _INT32:
        raise BodyError(f"{name} {number} is not between 0 and {_INT32 - 1}")
    return number


def checked_name(name: str, what: str) -> str:
    """The name itself. Raises BodyError when it is empty, too long or would break lines of a log."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise BodyError(f"{what} name {name[:80]!r}: 1 to {MAX_NAME} printable characters are allowed")
    return name
