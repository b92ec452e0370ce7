"""Which broker serves which topic, from registrations. Knows no sockets; time comes from the clock it is given.

| table | key | value |
|---|---|---|
| topics | topic, broker name | queues and permission |
| brokers | broker name | cluster, addresses by broker id |
| clusters | cluster | broker names |
| live | cluster, address | last sign of life, time allowed, data version, connection |
| filter_servers | cluster, address | addresses of filter servers |
| mappings | topic, broker name | mapping of a static topic |

A broker goes when it says so, when its connection closes, or when it is silent for longer than it asked for (120 s).
Topics follow the master, or the slave with the least id where there is none; with acting masters the topics of such a
slave are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from broker_gateway.remoting.body.registration import RegisterBrokerBody
from broker_gateway.remoting.body.route import MASTER_ID, QueueData
from broker_gateway.remoting.body.topic_config import PERM_READ, PERM_WRITE, DataVersion, TopicConfig
from broker_gateway.remoting.errors import RequestError

log = structlog.get_logger(__name__)

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 86_400_000
MAX_BROKERS = 10_000
MAX_QUEUE_DATAS = 2_000_000
"""Of all topics on all brokers."""
MAX_MAPPED_QUEUES = 1_000_000
"""Of all static topics on all brokers."""

BrokerKey = tuple[str, str]
"""Cluster and address."""


@dataclass(slots=True)
class Broker:
    """The brokers of one name."""

    cluster: str
    broker_name: str
    broker_addrs: dict[int, str] = field(default_factory=dict)
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
    """Answer to a registration: a slave is told its master."""

    ha_server_addr: str | None = None
    master_addr: str | None = None
    change: MinBrokerIdChange | None = None


class RouteTable:
    """`clock` gives ms; only differences count."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.brokers: dict[str, Broker] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[BrokerKey, LiveBroker] = {}
        self.filter_servers: dict[BrokerKey, list[str]] = {}
        self.mappings: dict[str, dict[str, Any]] = {}
        self._by_connection: dict[Hashable, set[BrokerKey]] = {}
        self._queue_datas = 0
        self._mapped_queues = 0

    # registration

    def register(
        self, given: Registration, connection: Hashable, *, delete_missing_topics: bool = False
    ) -> Registered:
        """Takes a broker's registration. Raises RequestError when it is refused."""
        key = (given.cluster_name, given.broker_addr)
        known = self.brokers.get(given.broker_name)
        before = dict(known.broker_addrs) if known is not None else {}
        if not self._is_newest(given, before):
            self._drop_live(key)
            return Registered()
        self._check_bounds(given, key)
        addrs = {
            number: addr
            for number, addr in before.items()
            if addr != given.broker_addr or number == given.broker_id
        }
        first = given.broker_id not in addrs
        if first and len(given.body.topic_config_table) == 1:
            # one topic alone is an update by a broker that must have registered whole before
            log.warning("a single topic of a broker that is not registered", broker=given.broker_name)
            raise RequestError("register broker failed")
        broker = known or Broker(given.cluster_name, given.broker_name)
        self.brokers[given.broker_name] = broker
        self.clusters.setdefault(given.cluster_name, set()).add(given.broker_name)
        broker.enable_acting_master = bool(given.enable_acting_master)
        broker.zone_name = given.zone_name
        addrs[given.broker_id] = given.broker_addr
        broker.broker_addrs = addrs
        self._take_topics(given, broker, key, first=first, delete_missing=delete_missing_topics)
        self._take_live(given, key, connection)
        if given.body.filter_server_list:
            self.filter_servers[key] = list(given.body.filter_server_list)
        else:
            self.filter_servers.pop(key, None)
        change = None
        if given.broker_id < min(before, default=0):
            change = self._change_of(broker, None, given.ha_server_addr)
        return self._registered(given, broker, change)

    def _is_newest(self, given: Registration, before: dict[int, str]) -> bool:
        """False when another address holds the broker id with a newer state (an old master that comes back)."""
        holder = before.get(given.broker_id)
        if holder is None or holder == given.broker_addr:
            return True
        live = self.live.get((given.cluster_name, holder))
        if live is None or live.data_version.state_version <= given.body.data_version.state_version:
            return True
        log.warning(
            "a registration older than the one there is passed over",
            broker=given.broker_name,
            broker_id=given.broker_id,
            there=holder,
            registering=given.broker_addr,
        )
        return False

    def _check_bounds(self, given: Registration, key: BrokerKey) -> None:
        if key not in self.live and len(self.live) >= MAX_BROKERS:
            raise RequestError(f"{MAX_BROKERS} brokers are registered; no more are taken")
        new = sum(
            given.broker_name not in self.topics.get(each, ()) for each in given.body.topic_config_table
        )
        if self._queue_datas + new > MAX_QUEUE_DATAS:
            raise RequestError(f"topics of all brokers: {MAX_QUEUE_DATAS} are allowed; no more are taken")
        mapped = sum(
            len(each.get("currIdMap", ())) for each in given.body.topic_queue_mapping_info_map.values()
        )
        if mapped and self._mapped_queues + mapped > MAX_MAPPED_QUEUES:
            raise RequestError(f"queues of static topics: {MAX_MAPPED_QUEUES} are allowed; no more are taken")

    def _take_topics(
        self, given: Registration, broker: Broker, key: BrokerKey, *, first: bool, delete_missing: bool
    ) -> None:
        is_master = given.broker_id == MASTER_ID
        is_prime_slave = (
            given.enable_acting_master is not None
            and not is_master
            and given.broker_id == broker.min_broker_id()
        )
        if not (is_master or is_prime_slave):
            return
        body = given.body
        if delete_missing and not body.topic_queue_mapping_info_map:
            for topic in self._topics_of(broker.broker_name) - set(body.topic_config_table):
                self._drop_queue_data(topic, broker.broker_name)
        live = self.live.get(key)
        changed = first or live is None or live.data_version != body.data_version
        read_only = is_prime_slave and broker.enable_acting_master
        for name, config in body.topic_config_table.items():
            if changed or broker.broker_name not in self.topics.get(name, ()):
                self._put(name, _queue_data(broker.broker_name, config, read_only))
        if changed:
            for name, mapping in body.topic_queue_mapping_info_map.items():
                if name in self.topics:
                    self._put_mapping(name, mapping)

    def _take_live(self, given: Registration, key: BrokerKey, connection: Hashable) -> None:
        if key not in self.live:
            log.info("new broker registered", broker=given.broker_name, address=given.broker_addr)
        self._drop_live(key)
        self.live[key] = LiveBroker(
            self._clock(),
            min(given.heartbeat_timeout_ms or DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS),
            given.body.data_version,
            connection,
            given.ha_server_addr,
        )
        self._by_connection.setdefault(connection, set()).add(key)

    def _registered(
        self, given: Registration, broker: Broker, change: MinBrokerIdChange | None
    ) -> Registered:
        master = broker.broker_addrs.get(MASTER_ID)
        live = self.live.get((given.cluster_name, master)) if master is not None else None
        if given.broker_id == MASTER_ID or live is None:
            return Registered(change=change)
        return Registered(live.ha_server_addr, master, change)

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData]) -> None:
        """Adds queues of a topic; all of them or, when one names an unknown broker, none."""
        queue_datas = list(queue_datas)
        unknown = [each.broker_name for each in queue_datas if each.broker_name not in self.brokers]
        if unknown:
            log.warning("a topic of an unknown broker is passed over", topic=topic, broker=unknown[0])
            return
        if self._queue_datas + len(queue_datas) > MAX_QUEUE_DATAS:
            raise RequestError(f"topics of all brokers: {MAX_QUEUE_DATAS} are allowed; no more are taken")
        for each in queue_datas:
            self._put(topic, each)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """On the brokers of the cluster, or on all."""
        names = self.topics.get(topic, {}).keys() if cluster is None else self.clusters.get(cluster, set())
        for broker_name in list(names):
            self._drop_queue_data(topic, broker_name)

    # life

    def touch(self, cluster: str, address: str) -> None:
        """A sign of life."""
        live = self.live.get((cluster, address))
        if live is not None:
            live.last_update = self._clock()

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self.live.get((cluster, address))
        return None if live is None else live.data_version

    def expired(self) -> list[tuple[BrokerKey, Hashable]]:
        """Brokers silent for too long, with their connections; `unregister_address` removes them."""
        now = self._clock()
        return [
            (key, live.connection)
            for key, live in self.live.items()
            if live.last_update + live.timeout_ms < now
        ]

    def connection_closed(self, connection: Hashable) -> list[MinBrokerIdChange]:
        """Its brokers are gone, unless they have registered through another one since."""
        return [
            change
            for cluster, address in list(self._by_connection.get(connection, ()))
            for change in self.unregister_address(cluster, address)
        ]

    def unregister_address(self, cluster: str, address: str) -> list[MinBrokerIdChange]:
        """Removes the broker of an address, whatever its name and id."""
        held = [
            (broker.broker_name, number)
            for broker in self.brokers.values()
            if broker.cluster == cluster
            for number, each in broker.broker_addrs.items()
            if each == address
        ]
        changes = [self.unregister(cluster, address, name, number) for name, number in held]
        self._drop_live((cluster, address))
        return [change for change in changes if change is not None]

    def unregister(
        self, cluster: str, address: str, broker_name: str, broker_id: int
    ) -> MinBrokerIdChange | None:
        """Removes a broker; the change to tell the others of its name, if acting masters are on."""
        self._drop_live((cluster, address))
        self.filter_servers.pop((cluster, address), None)
        broker = self.brokers.get(broker_name)
        if broker is None:
            return None
        was_least = bool(broker.broker_addrs) and broker_id == broker.min_broker_id()
        left = {number: each for number, each in broker.broker_addrs.items() if each != address}
        if len(left) < len(broker.broker_addrs):
            log.info("broker unregistered", broker=broker_name, broker_id=broker_id, address=address)
        broker.broker_addrs = left
        if not left:
            self._drop_name(cluster, broker_name)
            return None
        if not broker.enable_acting_master:
            return None
        if MASTER_ID not in left:
            self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)
        return self._change_of(broker, address, None) if was_least else None

    # permissions

    def wipe_write_perm(self, broker_name: str) -> int:
        """Takes the permission to write from the broker's topics; how many there are."""
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Gives the broker's topics permission to read and write; how many there are."""
        return self._set_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _set_perm(self, broker_name: str, perm: Callable[[int], int]) -> int:
        count = 0
        for queues in self.topics.values():
            found = queues.get(broker_name)
            if found is not None:
                queues[broker_name] = replace(found, perm=perm(found.perm))
                count += 1
        return count

    # parts

    def _topics_of(self, broker_name: str) -> set[str]:
        return {topic for topic, queues in self.topics.items() if broker_name in queues}

    def _put(self, topic: str, queue_data: QueueData) -> None:
        queues = self.topics.setdefault(topic, {})
        if queue_data.broker_name not in queues:
            self._queue_datas += 1
        queues[queue_data.broker_name] = queue_data

    def _put_mapping(self, topic: str, mapping: dict[str, Any]) -> None:
        mappings = self.mappings.setdefault(topic, {})
        before = mappings.get(mapping["bname"], {})
        self._mapped_queues += len(mapping.get("currIdMap", ())) - len(before.get("currIdMap", ()))
        mappings[mapping["bname"]] = mapping

    def _drop_queue_data(self, topic: str, broker_name: str) -> None:
        queues = self.topics.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self._queue_datas -= 1
        if not queues:
            del self.topics[topic]
            for mapping in self.mappings.pop(topic, {}).values():
                self._mapped_queues -= len(mapping.get("currIdMap", ()))

    def _drop_name(self, cluster: str, broker_name: str) -> None:
        broker = self.brokers.pop(broker_name)
        for each in {cluster, broker.cluster}:
            names = self.clusters.get(each, set())
            names.discard(broker_name)
            if not names:
                self.clusters.pop(each, None)
        for topic in self._topics_of(broker_name):
            self._drop_queue_data(topic, broker_name)

    def _drop_live(self, key: BrokerKey) -> None:
        live = self.live.pop(key, None)
        if live is None:
            return
        keys = self._by_connection[live.connection]
        keys.discard(key)
        if not keys:
            del self._by_connection[live.connection]

    def _change_of(self, broker: Broker, offline: str | None, ha: str | None) -> MinBrokerIdChange:
        """When a broker went (`offline`) the rest are told, when one came those that were there before."""
        least = broker.min_broker_id()
        addrs = broker.broker_addrs
        told = [
            addr
            for number, addr in addrs.items()
            if offline is not None or len(addrs) == 1 or number != least
        ]
        return MinBrokerIdChange(broker.broker_name, least, addrs[least], offline, ha, tuple(told))


def _queue_data(broker_name: str, topic: TopicConfig, read_only: bool) -> QueueData:
    return QueueData(
        broker_name,
        topic.read_queue_nums,
        topic.write_queue_nums,
        topic.perm & ~PERM_WRITE if read_only else topic.perm,
        topic.topic_sys_flag,
    )
