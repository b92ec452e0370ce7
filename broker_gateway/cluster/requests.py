"""Requests of a broker to name servers, as plain commands."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.protocol.body import topic_config
from broker_gateway.protocol.body.route import QueueData, TopicRouteData
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command

_CRC_MASK = 0x7FFFFFFF
"""The original's checksum is a Java `int` without its sign."""


class Identity(NamedTuple):
    """Who registers: `address` is `brokerIP1:listenPort`."""

    cluster: str
    name: str
    address: str
    ha_address: str
    broker_id: int = 0

    def fields(self) -> dict[str, str]:
        return {
            "clusterName": self.cluster,
            "brokerName": self.name,
            "brokerAddr": self.address,
            "brokerId": str(self.broker_id),
        }


def remoting_version(version: DataVersion) -> topic_config.DataVersion:
    """As it goes over the wire."""
    return topic_config.DataVersion(version.state_version, version.timestamp_ms, version.counter)


def register_broker(
    identity: Identity, body: bytes, *, compressed: bool, heartbeat_timeout_ms: int | None = None
) -> Command:
    """`heartbeat_timeout_ms`: after how much silence the name server drops us; None for its own limit."""
    fields = {
        **identity.fields(),
        "haServerAddr": identity.ha_address,
        "enableActingMaster": "false" if heartbeat_timeout_ms is None else "true",
        "compressed": "true" if compressed else "false",
        "bodyCrc32": str(zlib.crc32(body) & _CRC_MASK),
    }
    if heartbeat_timeout_ms is not None:
        fields["heartbeatTimeoutMillis"] = str(heartbeat_timeout_ms)
    return Command(RequestCode.REGISTER_BROKER, fields, body)


def unregister_broker(identity: Identity) -> Command:
    return Command(RequestCode.UNREGISTER_BROKER, identity.fields())


def query_data_version(identity: Identity, version: DataVersion) -> Command:
    return Command(RequestCode.QUERY_DATA_VERSION, identity.fields(), body=remoting_version(version).encode())


def broker_heartbeat(identity: Identity) -> Command:
    return Command(RequestCode.BROKER_HEARTBEAT, identity.fields())


def register_topic(identity: Identity, topic: TopicConfig) -> Command:
    """The queues of one topic, beside those that other brokers have of it."""
    queues = QueueData(
        identity.name, topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
    )
    body = TopicRouteData((queues,), ()).encode()
    return Command(RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": topic.topic_name}, body)
