"""What is known of a broker, what a registration says, and what it is answered."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass, field

from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.route import MASTER_ID
from broker_gateway.protocol.body.topic_config import DataVersion

BrokerKey = tuple[str, str]
"""Cluster and address."""


@dataclass(slots=True)
class Broker:
    """The brokers of one name. `cluster` is that of the first that came, `clusters` that of each by its id."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
    clusters: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool = False
    zone_name: str | None = None

    def min_broker_id(self) -> int:
        return min(self.broker_addrs)


@dataclass(slots=True)
class LiveBroker:
    """A broker that registered. Times in ms."""

    last_update: int
    timeout_ms: int
    data_version: DataVersion
    connection: Hashable
    ha_server_addr: str
    registered_from: str
    """Host."""
    tied: bool
    """Whether the address is one that may be connected to (see `claims`)."""


@dataclass(frozen=True, slots=True)
class Registration:
    """A REGISTER_BROKER request. `enable_acting_master` is None from brokers before 5.0."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int
    ha_server_addr: str
    body: RegisterBrokerBody
    zone_name: str | None = None
    heartbeat_timeout_ms: int | None = None
    enable_acting_master: bool | None = None

    def brings_topics(self, addrs: Collection[int]) -> bool:
        """Whether topics of the name are those that this broker has, `addrs` being the ids there are: the master, since
        5.0 a slave without one too."""
        if self.broker_id == MASTER_ID:
            return True
        return self.enable_acting_master is not None and self.broker_id == min(addrs)


@dataclass(frozen=True, slots=True)
class MinBrokerIdChange:
    """`notify` are the addresses that should hear of it."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str | None
    notify: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Registered:
    """Answer to a registration: it tells a slave where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    change: MinBrokerIdChange | None = None
