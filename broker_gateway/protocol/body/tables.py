"""Small bodies: a list of topics, a table of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from broker_gateway.protocol import java_json
from broker_gateway.protocol.java_json import JsonObject


@dataclass(frozen=True, slots=True)
class TopicList:
    """Names of topics."""

    topic_list: Sequence[str]
    broker_addr: str | None = None

    def encode(self) -> bytes:
        return java_json.dumps({"brokerAddr": self.broker_addr, "topicList": list(self.topic_list)})

    @classmethod
    def decode(cls, data: bytes) -> TopicList:
        """Raises BodyError."""
        value = JsonObject(java_json.loads(data), "the topic list")
        return cls(value.texts("topicList"), value.optional_text("brokerAddr"))


@dataclass(frozen=True, slots=True)
class KVTable:
    """Keys and values of a name server's namespace."""

    table: Mapping[str, str]

    def encode(self) -> bytes:
        return java_json.dumps({"table": dict(self.table)})

    @classmethod
    def decode(cls, data: bytes) -> KVTable:
        """Raises BodyError."""
        return cls(JsonObject(java_json.loads(data), "the table").text_map("table"))
