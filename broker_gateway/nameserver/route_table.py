"""Which broker serves which topic, from registrations. Knows no sockets; time comes from the clock it is given.

| table | key | value |
|---|---|---|
| topics | topic, broker name | queues and permission |
| brokers | broker name | cluster, addresses by broker id |
| clusters | cluster | broker names |
| live | cluster, address | last sign of life, time allowed, data version, connection |
| filter_servers | cluster, address | addresses of filter servers |
| mappings | topic, broker name | mapping of a static topic |

`version` changes with whatever lists of topics and clusters tell. No request looks through a whole table: what a
broker holds is kept by its name, its address and its connection as well.

A broker goes when it says so, when its connection closes, or when it is silent for longer than it asked for (120 s).
Topics follow the master, or the slave with the least id where there is none; with acting masters the topics of such a
slave are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from broker_gateway.nameserver.claims import OWN_MACHINE, Peer
from broker_gateway.remoting.body.registration import RegisterBrokerBody
from broker_gateway.remoting.body.route import MASTER_ID, QueueData
from broker_gateway.remoting.body.topic_config import PERM_READ, PERM_WRITE, DataVersion
from broker_gateway.remoting.errors import RequestError

log = structlog.get_logger(__name__)

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 86_400_000
MAX_BROKERS = 10_000
"""Addresses, each under every name it registered."""
MAX_QUEUE_DATAS = 2_000_000
"""Of all topics on all brokers."""
MAX_MAPPED_QUEUES = 1_000_000
"""Of all static topics on all brokers; a mapping counts as a queue itself."""
MAX_FILTER_SERVERS = 100_000
"""Of all brokers."""

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
        self.version = 0
        self._by_connection: dict[Hashable, set[BrokerKey]] = {}
        self._names: dict[BrokerKey, set[str]] = {}
        self._by_name: dict[str, dict[str, None]] = {}
        self._held = 0
        self._queue_datas = 0
        self._mapped_queues = 0
        self._filter_servers = 0

    # registration

    def register(
        self,
        given: Registration,
        connection: Hashable,
        *,
        delete_missing_topics: bool = False,
        peer: Peer = OWN_MACHINE,
    ) -> Registered:
        """Takes a broker's registration. Raises RequestError when it is refused."""
        key = (given.cluster_name, given.broker_addr)
        self.check_claim(*key, given.broker_name, given.broker_id, peer)
        known = self.brokers.get(given.broker_name)
        before = dict(known.broker_addrs) if known is not None else {}
        if not self._is_newest(given, before):
            return Registered(change=next(iter(self.unregister_address(*key)), None))
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
        addrs[given.broker_id] = given.broker_addr
        self._take_broker(given, broker, addrs, peer)
        self._take_topics(given, broker, key, first=first, delete_missing=delete_missing_topics)
        self._take_live(given, key, connection, peer)
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
        is_known = given.broker_name in self._names.get(key, ())
        if max(len(self.live), self._held) >= MAX_BROKERS and not (is_known and key in self.live):
            raise RequestError(f"{MAX_BROKERS} brokers are registered; no more are taken")
        servers = len(given.body.filter_server_list) - len(self.filter_servers.get(key, ()))
        if servers > 0 and self._filter_servers + servers > MAX_FILTER_SERVERS:
            raise RequestError(f"filter servers of all brokers: {MAX_FILTER_SERVERS} are allowed")
        new = sum(
            given.broker_name not in self.topics.get(each, ()) for each in given.body.topic_config_table
        )
        if self._queue_datas + new > MAX_QUEUE_DATAS:
            raise RequestError(f"topics of all brokers: {MAX_QUEUE_DATAS} are allowed; no more are taken")
        mapped = sum(
            _weight(each) - _weight(self.mappings.get(topic, {}).get(given.broker_name))
            for topic, each in given.body.topic_queue_mapping_info_map.items()
        )
        if mapped > 0 and self._mapped_queues + mapped > MAX_MAPPED_QUEUES:
            raise RequestError(f"queues of static topics: {MAX_MAPPED_QUEUES} are allowed; no more are taken")

    def _take_broker(self, given: Registration, broker: Broker, addrs: dict[int, str], peer: Peer) -> None:
        """Its name, id, address and cluster."""
        key = (given.cluster_name, given.broker_addr)
        names = self._names.setdefault(key, set())
        self._held += given.broker_name not in names
        names.add(given.broker_name)
        clusters = {number: each for number, each in broker.clusters.items() if number in addrs}
        clusters[given.broker_id] = given.cluster_name
        acting, zone = bool(given.enable_acting_master), given.zone_name
        if not self._speaks_for_all(broker, given.broker_id, peer):
            acting, zone = broker.enable_acting_master, broker.zone_name
        told = (addrs, clusters, acting, zone)
        if given.broker_name in self.brokers and told == (
            broker.broker_addrs,
            broker.clusters,
            broker.enable_acting_master,
            broker.zone_name,
        ):
            return
        self.version += 1
        self.brokers[given.broker_name] = broker
        replaced = broker.broker_addrs, broker.clusters
        broker.broker_addrs, broker.clusters, broker.enable_acting_master, broker.zone_name = told
        self._leave(broker, *replaced)
        self.clusters.setdefault(given.cluster_name, set()).add(given.broker_name)

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
            for topic in set(self.topics_of(broker.broker_name)) - set(body.topic_config_table):
                self._drop_queue_data(topic, broker.broker_name)
        live = self.live.get(key)
        changed = first or live is None or live.data_version != body.data_version
        read_only = is_prime_slave and broker.enable_acting_master
        alike: dict[tuple[int, ...], QueueData] = {}  # most topics of a broker have the same numbers
        for name, config in body.topic_config_table.items():
            if changed or broker.broker_name not in self.topics.get(name, ()):
                perm = config.perm & ~PERM_WRITE if read_only else config.perm
                numbers = (config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)
                queue_data = alike.get(numbers)
                if queue_data is None:
                    queue_data = alike[numbers] = QueueData(broker.broker_name, *numbers)
                self._put(name, queue_data)
        if changed:
            self._take_mappings(broker.broker_name, body.topic_queue_mapping_info_map)

    def _take_mappings(self, broker_name: str, given: Mapping[str, Any]) -> None:
        others = set()
        for topic, mapping in given.items():
            if mapping["bname"] != broker_name:
                others.add(mapping["bname"])
            elif broker_name in self.topics.get(topic, ()):
                mappings = self.mappings.setdefault(topic, {})
                self._mapped_queues += _weight(mapping) - _weight(mappings.get(broker_name))
                mappings[broker_name] = mapping
        if others:
            log.warning(
                "mappings of static topics under other brokers' names are passed over",
                broker=broker_name,
                named=sorted(others)[:5],
            )

    def _take_live(self, given: Registration, key: BrokerKey, connection: Hashable, peer: Peer) -> None:
        before, tied = self.live.get(key), peer.is_tied_to(given.broker_addr)
        if before is None:
            log.info(
                "new broker registered",
                broker=given.broker_name,
                address=given.broker_addr,
                registered_from=peer.host,
            )
        if before is None and not tied:
            log.warning(
                "a broker registered an address that it does not come from: no lakebroker connects to it unless "
                "lakeBrokerAddresses lists its host",
                broker=given.broker_name,
                address=given.broker_addr,
                registered_from=peer.host,
            )
        if tied != (before is not None and before.tied):
            self.version += 1
        self._drop_live(key)
        self.live[key] = LiveBroker(
            self._clock(),
            min(given.heartbeat_timeout_ms or DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS),
            given.body.data_version,
            connection,
            given.ha_server_addr,
            peer.host,
            tied,
        )
        self._by_connection.setdefault(connection, set()).add(key)
        if given.body.filter_server_list:
            self.filter_servers[key] = list(given.body.filter_server_list)
            self._filter_servers += len(self.filter_servers[key])

    def _registered(
        self, given: Registration, broker: Broker, change: MinBrokerIdChange | None
    ) -> Registered:
        master = broker.broker_addrs.get(MASTER_ID)
        live = self.live.get((given.cluster_name, master)) if master is not None else None
        if given.broker_id == MASTER_ID or live is None:
            return Registered(change=change)
        return Registered(live.ha_server_addr, master, change)

    def check_claim(self, cluster: str, address: str, broker_name: str, broker_id: int, peer: Peer) -> None:
        """Raises RequestError when somebody alive has this name and id, or this address, and `peer` may not speak for
        it. An id below the master's is a claim on its place."""
        keys = {(cluster, address)}
        broker = self.brokers.get(broker_name)
        if broker is not None:
            keys |= {
                (broker.clusters[number], addr)
                for number, addr in broker.broker_addrs.items()
                if addr == address or number == max(broker_id, MASTER_ID)
            }
        for key in keys:
            live = self.live.get(key)
            if live is not None and not peer.may_speak_for(live.registered_from):
                log.warning(
                    "a request for a broker that somebody else registered is refused; lakeBrokerAddresses allows it",
                    broker=broker_name,
                    broker_id=broker_id,
                    address=address,
                    holder=key[1],
                    registered_from=live.registered_from,
                    peer=peer.host,
                )
                raise RequestError(
                    f"broker {broker_name} with id {broker_id} at {address}: {key[1]}, registered from "
                    f"{live.registered_from}, is alive, and {peer.host} may not speak for it; try again when it is "
                    "gone, or list this host in the name server's lakeBrokerAddresses"
                )

    def _speaks_for_all(self, broker: Broker, broker_id: int, peer: Peer) -> bool:
        """Whether what this registration says of all brokers of the name counts: the one with the least id says it."""
        least = min(broker.broker_addrs, default=broker_id)
        if broker_id <= least:
            return True
        live = self.live.get((broker.clusters[least], broker.broker_addrs[least]))
        return live is None or peer.may_speak_for(live.registered_from)

    def is_tied(self, broker: Broker, broker_id: int) -> bool:
        """Whether the address of that id may be connected to (see `claims`)."""
        live = self.live.get((broker.clusters[broker_id], broker.broker_addrs[broker_id]))
        return live is not None and live.tied

    def register_topic(self, topic: str, queue_datas: Iterable[QueueData], peer: Peer = OWN_MACHINE) -> None:
        """Adds queues of a topic; all of them or, when one names an unknown broker, none. Raises RequestError."""
        queue_datas = list(queue_datas)
        for name in {each.broker_name for each in queue_datas if each.broker_name in self.brokers}:
            broker = self.brokers[name]
            least = broker.min_broker_id()
            self.check_claim(broker.clusters[least], broker.broker_addrs[least], name, least, peer)
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

    def touch(self, cluster: str, address: str, peer: Peer = OWN_MACHINE) -> None:
        """A sign of life; one from elsewhere is none."""
        live = self.live.get((cluster, address))
        if live is not None and peer.may_speak_for(live.registered_from):
            live.last_update = self._clock()

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self.live.get((cluster, address))
        return None if live is None else live.data_version

    def prolong(self, ms: int) -> None:
        """Gives every broker this much more time: its signs of life could not be taken."""
        now = self._clock()
        for live in self.live.values():
            live.last_update = min(now, live.last_update + ms)

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
            (name, number)
            for name in self._names.get((cluster, address), ())
            for number, each in self.brokers[name].broker_addrs.items()
            if each == address and self.brokers[name].clusters[number] == cluster
        ]
        changes = [self.unregister(cluster, address, name, number) for name, number in held]
        self._drop_live((cluster, address))
        return [change for change in changes if change is not None]

    def unregister(
        self, cluster: str, address: str, broker_name: str, broker_id: int
    ) -> MinBrokerIdChange | None:
        """Removes a broker; the change to tell the others of its name, if acting masters are on."""
        broker = self.brokers.get(broker_name)
        change = None if broker is None else self._take_away(broker, address, broker_id)
        if (cluster, address) not in self._names:
            self._drop_live((cluster, address))
        return change

    def _take_away(self, broker: Broker, address: str, broker_id: int) -> MinBrokerIdChange | None:
        was_least = bool(broker.broker_addrs) and broker_id == broker.min_broker_id()
        left = {number: each for number, each in broker.broker_addrs.items() if each != address}
        if len(left) < len(broker.broker_addrs):
            log.info("broker unregistered", broker=broker.broker_name, broker_id=broker_id, address=address)
            self.version += 1
            replaced = broker.broker_addrs, broker.clusters
            broker.broker_addrs = left
            broker.clusters = {number: each for number, each in broker.clusters.items() if number in left}
            self._leave(broker, *replaced)
        if not left:
            self._drop_name(broker)
            return None
        if not broker.enable_acting_master:
            return None
        if MASTER_ID not in left:
            self._set_perm(broker.broker_name, lambda perm: perm & ~PERM_WRITE)
        return self._change_of(broker, address, None) if was_least else None

    # permissions

    def wipe_write_perm(self, broker_name: str) -> int:
        """Takes the permission to write from the broker's topics; how many there are."""
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Gives the broker's topics permission to read and write; how many there are."""
        return self._set_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _set_perm(self, broker_name: str, perm: Callable[[int], int]) -> int:
        topics = self._by_name.get(broker_name, {})
        changed: dict[QueueData, QueueData] = {}
        for topic in topics:
            queues = self.topics[topic]
            found = queues[broker_name]
            if found not in changed:
                changed[found] = replace(found, perm=perm(found.perm))
            queues[broker_name] = changed[found]
        return len(topics)

    # parts

    def topics_of(self, broker_name: str) -> Iterable[str]:
        """Topics of the brokers of a name."""
        return self._by_name.get(broker_name, {}).keys()

    def _put(self, topic: str, queue_data: QueueData) -> None:
        queues = self.topics.setdefault(topic, {})
        before = queues.get(queue_data.broker_name)
        if before is None:
            self._queue_datas += 1
            self._by_name.setdefault(queue_data.broker_name, {})[topic] = None
        if before is not queue_data and before != queue_data:
            queues[queue_data.broker_name] = queue_data
            self.version += 1

    def _drop_queue_data(self, topic: str, broker_name: str) -> None:
        queues = self.topics.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self.version += 1
        self._queue_datas -= 1
        topics = self._by_name[broker_name]
        del topics[topic]
        if not topics:
            del self._by_name[broker_name]
        if not queues:
            del self.topics[topic]
        mappings = self.mappings.get(topic)
        if mappings is not None:
            self._mapped_queues -= _weight(mappings.pop(broker_name, None))
            if not mappings:
                del self.mappings[topic]

    def _drop_name(self, broker: Broker) -> None:
        del self.brokers[broker.broker_name]
        for topic in list(self.topics_of(broker.broker_name)):
            self._drop_queue_data(topic, broker.broker_name)

    def _leave(self, broker: Broker, addrs: dict[int, str], clusters: dict[int, str]) -> None:
        """Forgets what of a name's addresses and clusters before is not there any more."""
        now = {(broker.clusters[number], addr) for number, addr in broker.broker_addrs.items()}
        for key in {(clusters[number], addr) for number, addr in addrs.items()} - now:
            names = self._names[key]
            names.discard(broker.broker_name)
            self._held -= 1
            if not names:
                del self._names[key]
        left = set(clusters.values()) - set(broker.clusters.values())
        for cluster in left:
            names = self.clusters[cluster]
            names.discard(broker.broker_name)
            if not names:
                del self.clusters[cluster]
        if broker.cluster in left and broker.clusters:
            broker.cluster = broker.clusters[broker.min_broker_id()]

    def _drop_live(self, key: BrokerKey) -> None:
        live = self.live.pop(key, None)
        if live is None:
            return
        self._filter_servers -= len(self.filter_servers.pop(key, ()))
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
            if (offline is not None or len(addrs) == 1 or number != least) and self.is_tied(broker, number)
        ]
        return MinBrokerIdChange(broker.broker_name, least, addrs[least], offline, ha, tuple(told))


def _weight(mapping: dict[str, Any] | None) -> int:
    """What a mapping counts for."""
    return 0 if mapping is None else 1 + len(mapping.get("currIdMap", ()))
