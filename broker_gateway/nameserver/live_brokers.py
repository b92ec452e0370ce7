"""Brokers that registered and are heard of: when last, through which connection, and with which filter servers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from broker_gateway.nameserver.brokers import BrokerKey, LiveBroker
from broker_gateway.nameserver.claims import OWN_MACHINE, Peer
from broker_gateway.protocol.body.topic_config import DataVersion


class LiveBrokers(Mapping[BrokerKey, LiveBroker]):
    """By cluster and address. `clock` gives ms; only differences count."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._by_connection: dict[Hashable, set[BrokerKey]] = {}
        self.filter_servers: dict[BrokerKey, list[str]] = {}
        """Their addresses, of brokers that have some."""

    def __getitem__(self, key: BrokerKey) -> LiveBroker:
        return self._live[key]

    def __iter__(self) -> Iterator[BrokerKey]:
        return iter(self._live)

    def __len__(self) -> int:
        return len(self._live)

    def put(self, key: BrokerKey, live: LiveBroker, filter_servers: Sequence[str]) -> None:
        """A broker registered; one that is there is replaced."""
        self.drop(key)
        self._live[key] = live
        self._by_connection.setdefault(live.connection, set()).add(key)
        if filter_servers:
            self.filter_servers[key] = list(filter_servers)

    def drop(self, key: BrokerKey) -> bool:
        """Forgets a broker; whether it was there."""
        live = self._live.pop(key, None)
        if live is None:
            return False
        self.filter_servers.pop(key, None)
        keys = self._by_connection[live.connection]
        keys.discard(key)
        if not keys:
            del self._by_connection[live.connection]
        return True

    def touch(self, cluster: str, address: str, peer: Peer = OWN_MACHINE) -> None:
        """A sign of life; one from elsewhere is none."""
        live = self._live.get((cluster, address))
        if live is not None and peer.may_speak_for(live.registered_from):
            live.last_update = self._clock()

    def registered_from(self, cluster: str, address: str) -> str:
        """The host that registered it; empty when nobody did."""
        live = self._live.get((cluster, address))
        return "" if live is None else live.registered_from

    def data_version(self, cluster: str, address: str) -> DataVersion | None:
        live = self._live.get((cluster, address))
        return None if live is None else live.data_version

    def prolong(self, ms: int) -> None:
        """Gives every broker this much more time: its signs of life could not be taken."""
        now = self._clock()
        for live in self._live.values():
            live.last_update = min(now, live.last_update + ms)

    def expired(self) -> list[tuple[BrokerKey, Hashable]]:
        """Brokers silent for too long, with their connections; whoever asks removes them."""
        now = self._clock()
        return [(key, live.connection) for key, live in self._live.items() if _is_expired(live, now)]

    def is_expired(self, key: BrokerKey) -> bool:
        """Whether a broker is there and silent for too long."""
        live = self._live.get(key)
        return live is not None and _is_expired(live, self._clock())

    def first_of(self, connection: Hashable) -> BrokerKey | None:
        """A broker that registered through the connection, and through none since."""
        return next(iter(self._by_connection.get(connection, ())), None)


def _is_expired(live: LiveBroker, now_ms: int) -> bool:
    return live.last_update + live.timeout_ms < now_ms
