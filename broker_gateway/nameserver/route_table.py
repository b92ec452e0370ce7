"""Which broker serves which topic, from registrations. Knows no sockets; time comes from the clock it is given.

| table | key | value |
|---|---|---|
| topics | topic, broker name | queues, permission, mappings of static topics (`topic_table.py`) |
| brokers | broker name | cluster, addresses by broker id |
| clusters | cluster | broker names |
| live | cluster, address | last sign of life, time allowed, data version, connection, filter servers (`live_brokers.py`) |

`version` changes with whatever lists of topics and clusters tell. No request looks through a whole table: what a
broker holds is kept by its name, its address and its connection as well.

A broker goes when it says so, when its connection closes, or when it is silent for longer than it asked for (120 s).
Topics follow the master, or the slave with the least id where there is none; with acting masters the topics of such a
slave are read-only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

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
from broker_gateway.nameserver.live_brokers import LiveBrokers
from broker_gateway.nameserver.quotas import Held, Holder, Limits
from broker_gateway.nameserver.topic_table import TopicTable
from broker_gateway.protocol.body.route import MASTER_ID, QueueData
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.peer_log import PeerLog

log = structlog.get_logger(__name__)

DEFAULT_TIMEOUT_MS = 120_000
MAX_TIMEOUT_MS = 86_400_000
_LIFE_LINES = 20
"""Of brokers that come and go, for a host and a minute."""
_A_NAME = 10
"""What removing a broker's name costs, in topics cleared."""


class RouteTable:
    """`clock` gives ms; only differences count. What registering hosts hold is bounded by `limits`; `later` is told when
    there are topics of brokers that went to clear."""

    def __init__(
        self,
        clock: Callable[[], int],
        limits: Limits | None = None,
        later: Callable[[], None] = lambda: None,
    ) -> None:
        self._clock = clock
        self.brokers: dict[str, Broker] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live = LiveBrokers(clock)
        self.version = 0
        self._names: dict[BrokerKey, set[str]] = {}
        self.held = Held(limits or Limits())
        self.topics = TopicTable(self.held, self._changed, later)
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
        holder, brings = Holder.of(peer), given.brings_topics(addrs)
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
        if brings:
            self.topics.check_topics(name, given.body.topic_config_table, holder)
            self.topics.check_mappings(name, given.body.topic_queue_mapping_info_map, holder)

    def _hold(self, given: Registration, key: BrokerKey, holder: Holder, brings: bool) -> None:
        """What it registered is held by `holder` from now on."""
        self.held.brokers.hold(key, self._addresses(key), holder)
        self.held.filter_servers.hold(key, len(given.body.filter_server_list), holder)
        if brings:
            self.topics.hold(given.broker_name, holder)

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
        self._changed()
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
        body, name = given.body, broker.broker_name
        if delete_missing and not body.topic_queue_mapping_info_map:
            self.topics.drop_missing(name, body.topic_config_table)
        live = self.live.get(key)
        changed = first or live is None or live.data_version != body.data_version
        read_only = given.broker_id != MASTER_ID and broker.enable_acting_master
        self.topics.take(name, body.topic_config_table, read_only=read_only, all_of_them=changed)
        if not changed:
            return
        others = self.topics.take_mappings(name, body.topic_queue_mapping_info_map, Holder.of(peer))
        if others:
            self._log.warning(
                peer.host,
                "mappings of static topics under other brokers' names are passed over",
                broker=name,
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
            self._changed()
        self._drop_live(key)
        live = LiveBroker(
            self._clock(),
            min(given.heartbeat_timeout_ms or DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS),
            given.body.data_version,
            connection,
            given.ha_server_addr,
            peer.host,
            tied,
        )
        self.live.put(key, live, given.body.filter_server_list)

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
            self.topics.check_topics(name, [topic], holder)
        for each in queue_datas:
            self.topics.put(topic, each)
        for name, holder in holders.items():
            self.topics.hold(name, holder)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """On the brokers of the cluster, or on all."""
        names = self.topics.queues.get(topic, {}) if cluster is None else self.clusters.get(cluster, ())
        for broker_name in list(names):
            self.topics.drop(topic, broker_name)

    # leaving

    def work_of(self, cluster: str, address: str) -> int:
        """What `unregister_one` will cost, in topics cleared."""
        name = next(iter(self._names.get((cluster, address), ())), None)
        if name is None:
            return _A_NAME
        broker = self.brokers[name]
        topics = len(self.topics.of(name)) if broker.enable_acting_master else 0
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
                self.live.registered_from(broker.clusters[number], address),
                "broker unregistered",
                _LIFE_LINES,
                broker=broker.broker_name,
                broker_id=broker_id,
                address=address,
            )
            self._changed()
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
            self.topics.wipe_write_perm(broker.broker_name)
        return self._change_of(broker, address, None) if was_least else None

    # parts

    def _drop_name(self, broker: Broker) -> None:
        del self.brokers[broker.broker_name]
        self._changed()
        self.topics.drop_name(broker.broker_name)

    def _changed(self) -> None:
        self.version += 1

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
        if self.live.drop(key):
            self.held.filter_servers.put(key, 0)
            self.held.brokers.put(key, self._addresses(key))

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
