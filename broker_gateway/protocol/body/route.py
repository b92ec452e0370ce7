"""Where a topic lives: what clients and tools are told about it, and about clusters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.topic_config import PERM_READ, PERM_WRITE, checked_name, small
from broker_gateway.protocol.java_json import JsonObject

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class QueueData:
    """Queues of a topic under one broker name."""

    broker_name: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int = PERM_READ | PERM_WRITE
    topic_sys_flag: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerName": self.broker_name,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> QueueData:
        """Raises BodyError."""
        return cls(
            checked_name(value.text("brokerName"), "broker"),
            small(value, "readQueueNums", 0),
            small(value, "writeQueueNums", 0),
            small(value, "perm", 0),
            small(value, "topicSysFlag", 0),
        )


@dataclass(frozen=True, slots=True)
class BrokerData:
    """Addresses under one broker name, by broker id; 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]
    enable_acting_master: bool = False
    zone_name: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "brokerAddrs": dict(self.broker_addrs),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
            "enableActingMaster": self.enable_acting_master,
            "zoneName": self.zone_name,
        }

    @classmethod
    def from_json(cls, value: JsonObject) -> BrokerData:
        """Raises BodyError."""
        return cls(
            value.text("cluster", ""),
            checked_name(value.text("brokerName"), "broker"),
            value.integer_keys("brokerAddrs"),
            value.boolean("enableActingMaster"),
            value.optional_text("zoneName"),
        )


@dataclass(frozen=True, slots=True)
class TopicRouteData:
    """Route of a topic. `topic_queue_mapping_by_broker` (static topics) is handed on as it came."""

    queue_datas: tuple[QueueData, ...]
    broker_datas: tuple[BrokerData, ...]
    filter_server_table: Mapping[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: Mapping[str, Any] | None = None

    def encode(self, *, standard: bool = False) -> bytes:
        """`standard` as java_json.dumps has it."""
        members = {
            "brokerDatas": [each.to_json() for each in self.broker_datas],
            "filterServerTable": dict(self.filter_server_table),
            "orderTopicConf": self.order_topic_conf,
            "queueDatas": [each.to_json() for each in self.queue_datas],
            "topicQueueMappingByBroker": self.topic_queue_mapping_by_broker,
        }
        return java_json.dumps(members, standard=standard)

    @classmethod
    def decode(cls, data: bytes) -> TopicRouteData:
        """Raises BodyError."""
        value = JsonObject(java_json.loads(data), "the route")
        servers = value.object("filterServerTable")
        mappings = value.object("topicQueueMappingByBroker").members
        return cls(
            tuple(QueueData.from_json(JsonObject(each, "queue data")) for each in value.array("queueDatas")),
            tuple(
                BrokerData.from_json(JsonObject(each, "broker data")) for each in value.array("brokerDatas")
            ),
            {address: servers.texts(address) for address in servers.members},
            value.optional_text("orderTopicConf"),
            mappings or None,
        )


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Every broker name, and the broker names of every cluster."""

    broker_addr_table: Mapping[str, BrokerData]
    cluster_addr_table: Mapping[str, list[str]]

    def encode(self) -> bytes:
        brokers = {name: each.to_json() for name, each in self.broker_addr_table.items()}
        return java_json.dumps(
            {"brokerAddrTable": brokers, "clusterAddrTable": dict(self.cluster_addr_table)}
        )

    @classmethod
    def decode(cls, data: bytes) -> ClusterInfo:
        """Raises BodyError."""
        value = JsonObject(java_json.loads(data), "the cluster information")
        brokers, clusters = value.object("brokerAddrTable"), value.object("clusterAddrTable")
        return cls(
            {name: BrokerData.from_json(brokers.object(name)) for name in brokers.members},
            {name: clusters.texts(name) for name in clusters.members},
        )


@dataclass(frozen=True, slots=True)
class BrokerMemberGroup:
    """Addresses of one broker name; body of GET_BROKER_MEMBER_GROUP's answer."""

    cluster: str
    broker_name: str
    broker_addrs: Mapping[int, str]

    def encode(self) -> bytes:
        members = {
            "brokerAddrs": dict(self.broker_addrs),
            "brokerName": self.broker_name,
            "cluster": self.cluster,
        }
        return java_json.dumps({"brokerMemberGroup": members})

    @classmethod
    def decode(cls, data: bytes) -> BrokerMemberGroup:
        """Raises BodyError."""
        value = JsonObject(java_json.loads(data), "the answer").object("brokerMemberGroup")
        return cls(value.text("cluster", ""), value.text("brokerName", ""), value.integer_keys("brokerAddrs"))
