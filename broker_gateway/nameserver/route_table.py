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
broker holds is kept by its name, its address and its connection as well. A topic is on a broker when it is among those of the
broker's name: `topics` and `mappings` have more of brokers that went, until `topic_cleanup` are cleared.

A broker goes when it says so, when its connection closes, or when it is silent for longer than it asked for (120 s).
Topics follow the master, or the slave with the least id where there is none; with acting masters the topics of such a
slave are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, KeysView, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import structlog

from broker_gateway.nameserver.brokers import (
    Broker,
    BrokerKey,
    LiveBroker,
    MinBrokerIdChange,
    Registered,
    Registration,
)
from broker_gateway.nameserver.claims import OWN_MACHINE, Claim, Peer, check_claim
from broker_gateway.nameserver.quotas import Held, Holder, Limits
from broker_gateway.nameserver.topic_cleanup import TopicCleanup
from broker_gateway.protocol.body.route import MASTER_ID, QueueData
from broker_gateway.protocol.body.topic_config import PERM_READ, PERM_WRITE, DataVersion
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.peer_log import PeerLog

log = structlog.get_logger(__name__)

_T = TypeVar("_T")

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 86_400_000
_LIFE_LINES = 20
"""Of brokers that come and go, for a host and a minute."""
_A_NAME = 10
"""What removing a broker's name costs, in topics cleared."""


class RouteTable:
    """`clock` gives ms; only differences count. What registering hosts hold is bounded by `limits`; `later` is told when
    there are `topic_cleanup` to clear."""

    def __init__(
        self,
        clock: Callable[[], int],
        limits: Limits | None = None,
        later: Callable[[], None] = lambda: None,
    ) -> None:
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
        self.held = Held(limits or Limits())
        self.topic_cleanup = TopicCleanup(self._clear, later)
        self._log = PeerLog()

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
        check_claim(self, Claim(*key, given.broker_name, given.broker_id), peer)
        known = self.brokers.get(given.broker_name)
        before = dict(known.broker_addrs) if known is not None else {}
        if not self._is_newest(given, before, peer):
            return Registered(change=next(iter(self.unregister_address(*key)), None))
        addrs = {
            number: addr
            for number, addr in before.items()
            if addr != given.broker_addr or number == given.broker_id
        }
        first = given.broker_id not in addrs
        if first and len(given.body.topic_config_table) == 1:
            # one topic alone is an update by a broker that must have registered whole before
            self._log.warning(
                peer.host, "a single topic of a broker that is not registered", broker=given.broker_name
            )
            raise RequestError("register broker failed")
        broker = known or Broker(given.cluster_name, given.broker_name)
        addrs[given.broker_id] = given.broker_addr
        holder, brings = Holder.of(peer), _brings_topics(given, addrs)
        self._check_bounds(given, key, holder, brings)
        self._take_broker(given, broker, addrs, peer)
        if brings:
            self._take_topics(given, broker, key, peer, first=first, delete_missing=delete_missing_topics)
        self._take_live(given, key, connection, peer)
        self._hold(given, key, holder, brings)
        change = None
        if given.broker_id < min(before, default=0):
            change = self._change_of(broker, None, given.ha_server_addr)
        return self._registered(given, broker, change)

    def _is_newest(self, given: Registration, before: dict[int, str], peer: Peer) -> bool:
        """False when another address holds the broker id with a newer state (an old master that comes back)."""
        holder = before.get(given.broker_id)
        if holder is None or holder == given.broker_addr:
            return True
        live = self.live.get((given.cluster_name, holder))
        if live is None or live.data_version.state_version <= given.body.data_version.state_version:
            return True
        self._log.warning(
            peer.host,
            "a registration older than the one there is passed over",
            broker=given.broker_name,
            broker_id=given.broker_id,
            there=holder,
            registering=given.broker_addr,
        )
        return False

    def _check_bounds(self, given: Registration, key: BrokerKey, holder: Holder, brings: bool) -> None:
        """Whether there is room for all of it. Raises RequestError."""
        name, held = given.broker_name, self.held
        is_known = name in self._names.get(key, ())
        held.brokers.check(key, len(self._names.get(key, ())) + (not is_known), holder)
        held.filter_servers.check(key, len(given.body.filter_server_list), holder)
        if not brings:
            return
        new = sum(not self._has(name, each) for each in given.body.topic_config_table)
        held.queue_datas.check(name, len(self.topics_of(name)) + new, holder)
        mapped = sum(
            _weight(each) - _weight(self._mapping(name, topic))
            for topic, each in given.body.topic_queue_mapping_info_map.items()
        )
        held.mapped_queues.check(name, held.mapped_queues.of(name) + mapped, holder)

    def _hold(self, given: Registration, key: BrokerKey, holder: Holder, brings: bool) -> None:
        """What it registered is held by `holder` from now on."""
        self.held.brokers.hold(key, self._addresses(key), holder)
        self.held.filter_servers.hold(key, len(given.body.filter_server_list), holder)
        if brings:
            self.held.queue_datas.hold(given.broker_name, len(self.topics_of(given.broker_name)), holder)

    def _take_broker(self, given: Registration, broker: Broker, addrs: dict[int, str], peer: Peer) -> None:
        """Its name, id, address and cluster."""
        key = (given.cluster_name, given.broker_addr)
        names = self._names.setdefault(key, set())
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
        self,
        given: Registration,
        broker: Broker,
        key: BrokerKey,
        peer: Peer,
        *,
        first: bool,
        delete_missing: bool,
    ) -> None:
        body = given.body
        if delete_missing and not body.topic_queue_mapping_info_map:
            for topic in set(self.topics_of(broker.broker_name)) - set(body.topic_config_table):
                self._drop_queue_data(topic, broker.broker_name)
        live = self.live.get(key)
        changed = first or live is None or live.data_version != body.data_version
        read_only = given.broker_id != MASTER_ID and broker.enable_acting_master
        alike: dict[tuple[int, ...], QueueData] = {}  # most topics of a broker have the same numbers
        for name, config in body.topic_config_table.items():
            if changed or not self._has(broker.broker_name, name):
                perm = config.perm & ~PERM_WRITE if read_only else config.perm
                numbers = (config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)
                queue_data = alike.get(numbers)
                if queue_data is None:
                    queue_data = alike[numbers] = QueueData(broker.broker_name, *numbers)
                self._put(name, queue_data)
        if changed:
            self._take_mappings(broker.broker_name, body.topic_queue_mapping_info_map, peer)

    def _take_mappings(self, broker_name: str, given: Mapping[str, Any], peer: Peer) -> None:
        others, held = set(), self.held.mapped_queues.of(broker_name)
        for topic, mapping in given.items():
            if mapping["bname"] != broker_name:
                others.add(mapping["bname"])
            elif self._has(broker_name, topic):
                mappings = self.mappings.setdefault(topic, {})
                held += _weight(mapping) - _weight(mappings.get(broker_name))
                mappings[broker_name] = mapping
        self.held.mapped_queues.hold(broker_name, held, Holder.of(peer))
        if others:
            self._log.warning(
                peer.host,
                "mappings of static topics under other brokers' names are passed over",
                broker=broker_name,
                named=sorted(others)[:5],
            )

    def _take_live(self, given: Registration, key: BrokerKey, connection: Hashable, peer: Peer) -> None:
        before, tied = self.live.get(key), peer.is_tied_to(given.broker_addr)
        if before is None:
            self._log.info(
                peer.host,
                "new broker registered",
                _LIFE_LINES,
                broker=given.broker_name,
                address=given.broker_addr,
                registered_from=peer.host,
            )
        if before is None and not tied:
            self._log.warning(
                peer.host,
                "a broker registered an address that it does not come from: no lakebroker connects to it unless "
                "lakeBrokerAddresses lists its host",
                _LIFE_LINES,
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

    def _registered(
        self, given: Registration, broker: Broker, change: MinBrokerIdChange | None
    ) -> Registered:
        master = broker.broker_addrs.get(MASTER_ID)
        live = self.live.get((given.cluster_name, master)) if master is not None else None
        if given.broker_id == MASTER_ID or live is None:
            return Registered(change=change)
        return Registered(live.ha_server_addr, master, change)

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
            check_claim(self, Claim(broker.clusters[least], broker.broker_addrs[least], name, least), peer)
        unknown = [each.broker_name for each in queue_datas if each.broker_name not in self.brokers]
        if unknown:
            self._log.warning(
                peer.host, "a topic of an unknown broker is passed over", topic=topic, broker=unknown[0]
            )
            return
        held = self.held.queue_datas
        holders = {
            name: held.holder(name) or Holder.of(peer) for name in {each.broker_name for each in queue_datas}
        }
        for name, holder in holders.items():
            held.check(name, len(self.topics_of(name)) + (not self._has(name, topic)), holder)
        for each in queue_datas:
            self._put(topic, each)
        for name, holder in holders.items():
            held.hold(name, len(self.topics_of(name)), holder)

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

    def registered_from(self, cluster: str, address: str) -> str:
        """The host that registered it; empty when nobody did."""
        live = self.live.get((cluster, address))
        return "" if live is None else live.registered_from

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self.live.get((cluster, address))
        return None if live is None else live.data_version

    def prolong(self, ms: int) -> None:
        """Gives every broker this much more time: its signs of life could not be taken."""
        now = self._clock()
        for live in self.live.values():
            live.last_update = min(now, live.last_update + ms)

    def expired(self) -> list[tuple[BrokerKey, Hashable]]:
        """Brokers silent for too long, with their connections; `unregister_one` removes them."""
        now = self._clock()
        return [(key, live.connection) for key, live in self.live.items() if _is_expired(live, now)]

    def is_expired(self, key: BrokerKey) -> bool:
        """Whether a broker is there and silent for too long."""
        live = self.live.get(key)
        return live is not None and _is_expired(live, self._clock())

    def first_of(self, connection: Hashable) -> BrokerKey | None:
        """A broker that registered through the connection, and through none since."""
        return next(iter(self._by_connection.get(connection, ())), None)

    def work_of(self, cluster: str, address: str) -> int:
        """What `unregister_one` will cost, in topics cleared."""
        name = next(iter(self._names.get((cluster, address), ())), None)
        if name is None:
            return _A_NAME
        broker = self.brokers[name]
        topics = len(self.topics_of(name)) if broker.enable_acting_master else 0
        return _A_NAME + len(broker.broker_addrs) + topics

    def unregister_one(self, cluster: str, address: str) -> MinBrokerIdChange | None:
        """Removes a broker of the address, whatever its name and id; with the last one, the address."""
        for name in self._names.get((cluster, address), ()):
            broker = self.brokers[name]
            for number, each in broker.broker_addrs.items():
                if each == address and broker.clusters[number] == cluster:
                    return self.unregister(cluster, address, name, number)
        self._drop_live((cluster, address))
        return None

    def unregister_address(self, cluster: str, address: str) -> list[MinBrokerIdChange]:
        """Removes the brokers of an address."""
        key, changes = (cluster, address), []
        while key in self._names or key in self.live:
            changes.append(self.unregister_one(cluster, address))
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
            number = next(number for number, each in broker.broker_addrs.items() if each == address)
            self._log.info(
                self.registered_from(broker.clusters[number], address),
                "broker unregistered",
                _LIFE_LINES,
                broker=broker.broker_name,
                broker_id=broker_id,
                address=address,
            )
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

    def topics_of(self, broker_name: str) -> KeysView[str]:
        """Topics of the brokers of a name."""
        return self._by_name.get(broker_name, {}).keys()

    def _has(self, broker_name: str, topic: str) -> bool:
        return topic in self._by_name.get(broker_name, ())

    def queue_datas(self, topic: str) -> Mapping[str, QueueData]:
        """Of the brokers that have the topic, by name."""
        return self._without_leavings(topic, self.topics.get(topic, {}))

    def mappings_of(self, topic: str) -> Mapping[str, Any] | None:
        """Of a static topic, by broker name; None when there are none."""
        return self._without_leavings(topic, self.mappings.get(topic, {})) or None

    def _without_leavings(self, topic: str, by_name: Mapping[str, _T]) -> Mapping[str, _T]:
        if not self.topic_cleanup:
            return by_name
        return {name: each for name, each in by_name.items() if self._has(name, topic)}

    def _mapping(self, broker_name: str, topic: str) -> dict[str, Any] | None:
        return self.mappings.get(topic, {}).get(broker_name) if self._has(broker_name, topic) else None

    def _put(self, topic: str, queue_data: QueueData) -> None:
        topics = self._by_name.setdefault(queue_data.broker_name, {})
        if topic not in topics:
            if self.topic_cleanup:
                self._forget(topic, queue_data.broker_name)
                self.topic_cleanup.clear(1)  # who brings topics faster than they are cleared clears as many
            topics[topic] = None
        queues = self.topics.setdefault(topic, {})
        before = queues.get(queue_data.broker_name)
        if before is not queue_data and before != queue_data:
            queues[queue_data.broker_name] = queue_data
            self.version += 1

    def _drop_queue_data(self, topic: str, broker_name: str) -> None:
        if not self._has(broker_name, topic):
            return
        mapped, weight = self.held.mapped_queues, _weight(self._mapping(broker_name, topic))
        mapped.put(broker_name, mapped.of(broker_name) - weight)
        topics = self._by_name[broker_name]
        del topics[topic]
        self.held.queue_datas.put(broker_name, len(topics))
        if not topics:
            del self._by_name[broker_name]
        self._forget(topic, broker_name)

    def _drop_name(self, broker: Broker) -> None:
        """Its topics are on no route from now on; the tables have them until they are cleared."""
        name = broker.broker_name
        del self.brokers[name]
        self.version += 1
        self.held.queue_datas.put(name, 0)
        self.held.mapped_queues.put(name, 0)
        self.topic_cleanup.add(name, self._by_name.pop(name, {}))

    def _clear(self, topic: str, broker_name: str) -> None:
        """Of a broker that went; one of its name may have come since."""
        if not self._has(broker_name, topic):
            self._forget(topic, broker_name)

    def _forget(self, topic: str, broker_name: str) -> None:
        """Takes the topic on a broker out of the tables of topics."""
        queues = self.topics.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self.version += 1
        if not queues:
            del self.topics[topic]
        mappings = self.mappings.get(topic)
        if mappings is not None:
            mappings.pop(broker_name, None)
            if not mappings:
                del self.mappings[topic]

    def _leave(self, broker: Broker, addrs: dict[int, str], clusters: dict[int, str]) -> None:
        """Forgets what of a name's addresses and clusters before is not there any more."""
        now = {(broker.clusters[number], addr) for number, addr in broker.broker_addrs.items()}
        for key in {(clusters[number], addr) for number, addr in addrs.items()} - now:
            names = self._names[key]
            names.discard(broker.broker_name)
            if not names:
                del self._names[key]
            self.held.brokers.put(key, self._addresses(key))
        left = set(clusters.values()) - set(broker.clusters.values())
        for cluster in left:
            names = self.clusters[cluster]
            names.discard(broker.broker_name)
            if not names:
                del self.clusters[cluster]
        if broker.cluster in left and broker.clusters:
            broker.cluster = broker.clusters[broker.min_broker_id()]

    def _addresses(self, key: BrokerKey) -> int:
        """What an address counts for: each of its names; one whose names others have is there until it goes."""
        return len(self._names.get(key, ())) or int(key in self.live)

    def _drop_live(self, key: BrokerKey) -> None:
        live = self.live.pop(key, None)
        if live is None:
            return
        self.filter_servers.pop(key, None)
        self.held.filter_servers.put(key, 0)
        self.held.brokers.put(key, self._addresses(key))
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


def _brings_topics(given: Registration, addrs: Mapping[int, str]) -> bool:
    """Whether topics of the name are those that this broker has: the master, since 5.0 a slave without one too."""
    if given.broker_id == MASTER_ID:
        return True
    return given.enable_acting_master is not None and given.broker_id == min(addrs)


def _weight(mapping: dict[str, Any] | None) -> int:
    """What a mapping counts for."""
    return 0 if mapping is None else 1 + len(mapping.get("currIdMap", ()))


def _is_expired(live: LiveBroker, now_ms: int) -> bool:
    return live.last_update + live.timeout_ms < now_ms
