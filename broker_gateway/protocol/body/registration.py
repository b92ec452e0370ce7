"""Body of REGISTER_BROKER: a broker's topics.

Plain: JSON `{topicConfigSerializeWrapper: {topicConfigTable, dataVersion, topicQueueMappingInfoMap, …}, filterServerList}`;
before 3.0.11 only what is in `topicConfigSerializeWrapper`.

Compressed: zlib, of parts that begin with their length (4 bytes, big-endian) where a length is named:

| part | form |
|---|---|
| data version | length, JSON |
| number of topics | 4 bytes |
| each topic | length, text `name readQueues writeQueues perm filterType attributes` |
| filter servers | length, JSON array |
| number of topic queue mappings | 4 bytes; not before 5.0 |
| each mapping | length, JSON |

Which of the two it is, the first byte says (zlib's 0x78): 5.x brokers may label a compressed body as plain.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig, checked_name
from broker_gateway.protocol.codes import Version
from broker_gateway.protocol.errors import BodyError
from broker_gateway.protocol.java_json import JsonObject

MAX_DECOMPRESSED = 64 << 20
"""Bytes of a compressed body once it is unpacked."""
MAX_TOPICS = 200_000
"""Of one registration; brokers with more send several (`enableSplitRegistration`)."""
MAX_FILTER_SERVERS = 1000
MAX_ADDRESS = 300
"""Characters of a filter server's address, or of a mapping's scope."""
_ID = re.compile(r"-?[0-9]{1,10}")
_LENGTH = struct.Struct(">i")
assert _LENGTH.size == 4


@dataclass(frozen=True, slots=True)
class RegisterBrokerBody:
    """`topic_queue_mapping_info_map` (static topics: topic to mapping) is plain JSON values, handed on as they came."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    filter_server_list: tuple[str, ...] = ()
    topic_queue_mapping_info_map: Mapping[str, Any] = field(default_factory=dict)

    def encode(self, *, compress: bool) -> bytes:
        """What a broker sends; `compress` also goes into the request's header."""
        return self._encode_compressed() if compress else self._encode_json()

    def _encode_json(self) -> bytes:
        wrapper = {
            "dataVersion": self.data_version.to_json(),
            "mappingDataVersion": DataVersion().to_json(),
            "topicConfigTable": {name: each.to_json() for name, each in self.topic_config_table.items()},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": dict(self.topic_queue_mapping_info_map),
        }
        return java_json.dumps(
            {"filterServerList": list(self.filter_server_list), "topicConfigSerializeWrapper": wrapper}
        )

    def _encode_compressed(self) -> bytes:
        parts = [_part(self.data_version.encode()), _LENGTH.pack(len(self.topic_config_table))]
        parts += [_part(each.to_text().encode()) for each in self.topic_config_table.values()]
        parts.append(_part(java_json.dumps(list(self.filter_server_list))))
        parts.append(_LENGTH.pack(len(self.topic_queue_mapping_info_map)))
        parts += [_part(java_json.dumps(each)) for each in self.topic_queue_mapping_info_map.values()]
        return zlib.compress(b"".join(parts), 9)

    @classmethod
    def decode(cls, data: bytes, version: int) -> RegisterBrokerBody:
        """`version` is that of the request. Raises BodyError."""
        if not data:
            return cls()
        if data[0] == 0x78:
            return _decode_compressed(data, version)
        value = JsonObject(java_json.loads(data), "the registration")
        if version < Version.V3_0_11:
            return _decode_wrapper(value, ())
        servers = _servers(value)
        if value.members.get("topicConfigSerializeWrapper") is None:
            raise BodyError(
                "the registration has no topicConfigSerializeWrapper; send the broker's topics and data version in it"
            )
        return _decode_wrapper(value.object("topicConfigSerializeWrapper"), servers)


def _part(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _servers(value: JsonObject) -> tuple[str, ...]:
    servers = value.texts("filterServerList")
    if len(servers) > MAX_FILTER_SERVERS:
        raise BodyError(f"{len(servers)} filter servers: {MAX_FILTER_SERVERS} are allowed")
    for each in servers:
        if len(each) > MAX_ADDRESS:
            raise BodyError(f"filter server {each[:80]!r}…: {MAX_ADDRESS} characters are allowed")
    return tuple(servers)


def _decode_wrapper(wrapper: JsonObject, servers: tuple[str, ...]) -> RegisterBrokerBody:
    table = wrapper.object("topicConfigTable")
    _check_count(len(table.members))
    topics = [TopicConfig.from_json(table.object(name)) for name in table.members]
    return RegisterBrokerBody(
        DataVersion.from_json(wrapper.object("dataVersion")),
        {each.topic_name: each for each in topics},
        servers,
        dict(_mapping(each) for each in wrapper.object("topicQueueMappingInfoMap").members.values()),
    )


def _check_count(topics: int) -> None:
    if not 0 <= topics <= MAX_TOPICS:
        raise BodyError(f"{topics} topics in a registration: 0 to {MAX_TOPICS} are allowed")


def _mapping(value: Any) -> tuple[str, dict[str, Any]]:
    """The topic of a mapping, and the mapping with its queue ids as integers (as Java writes them)."""
    mapping = JsonObject(value, "a topic queue mapping")
    ids = mapping.object("currIdMap")
    topic = checked_name(mapping.text("topic"), "topic")
    scope = mapping.text("scope", "__global__")
    if len(scope) > MAX_ADDRESS:
        raise BodyError(f"scope {scope[:80]!r}…: {MAX_ADDRESS} characters are allowed")
    return topic, {
        "bname": checked_name(mapping.text("bname"), "broker"),
        "currIdMap": {int(key): ids.integer(key, 0) for key in ids.members if _ID.fullmatch(key)},
        "dirty": mapping.boolean("dirty"),
        "epoch": mapping.integer("epoch", 0),
        "scope": scope,
        "topic": topic,
        "totalQueues": mapping.integer("totalQueues", 0),
    }


class _Parts:
    """Reads the unpacked body front to back; never past its end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def number(self, what: str) -> int:
        if self.left < 4:
            raise BodyError(f"the registration ends before {what}")
        (number,) = _LENGTH.unpack_from(self._data, self._at)
        self._at += 4
        return int(number)

    def part(self, what: str) -> bytes:
        length = self.number(what)
        if not 0 <= length <= self.left:
            raise BodyError(f"{what} of {length} bytes, where {self.left} are left of the registration")
        self._at += length
        return self._data[self._at - length : self._at]


def _decode_compressed(data: bytes, version: int) -> RegisterBrokerBody:
    parts = _Parts(_decompress(data))
    data_version = DataVersion.decode(parts.part("the data version"))
    count = parts.number("the number of topics")
    _check_count(count)
    topics = {}
    for _ in range(count):
        text = parts.part("a topic")
        try:
            topic = TopicConfig.from_text(text.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise BodyError(f"a topic is no UTF-8: {error}") from error
        topics[topic.topic_name] = topic
    listed = java_json.loads(parts.part("the filter servers"))
    servers = _servers(JsonObject({"filterServerList": listed}, "the registration"))
    mappings: dict[str, Any] = {}
    if version >= Version.V5_0_0 and parts.left:
        count = parts.number("the number of mappings")
        _check_count(count)
        mappings = dict(_mapping(java_json.loads(parts.part("a mapping"))) for _ in range(count))
    return RegisterBrokerBody(data_version, topics, servers, mappings)


def _decompress(data: bytes) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, MAX_DECOMPRESSED)
    except zlib.error as error:
        raise BodyError(f"the registration of {len(data)} bytes cannot be unpacked: {error}") from error
    if unpacker.unconsumed_tail:
        raise BodyError(f"the registration unpacks to more than {MAX_DECOMPRESSED} bytes")
    if not unpacker.eof:
        raise BodyError("the compressed registration is cut off")
    return unpacked
