"""What registering hosts hold in a name server, and how much they may, so that none takes what all need.

| of all together | a host may hold | a trusted host (see `claims`) |
|---|---|---|
| half of the limit | what is there | what is there of a limit of its own, as large, that only trusted hosts use |
| more | a quarter of the limit | the same |

A thing counts for the host that registered it last: an address under its names and its filter servers for the broker
that has it, topics and mappings for the broker that brought them last.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

from broker_gateway.nameserver.claims import Peer
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.shares import Shares, network_of

SHARE_PERCENT = 25


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all hosts together."""

    brokers: int = 10_000
    """Addresses, each under every name it registered."""
    queue_datas: int = 2_000_000
    """Of all topics on all brokers."""
    mapped_queues: int = 1_000_000
    """Of all static topics on all brokers; a mapping counts as a queue itself."""
    filter_servers: int = 100_000
    """Of all brokers."""


class _Pool:
    """What hosts that share a limit hold."""

    def __init__(self, limit: int, percent: int) -> None:
        self.shares = Shares(limit, percent)
        self.held = 0


class Holder(NamedTuple):
    """A host that registers."""

    host: str
    is_trusted: bool

    @classmethod
    def of(cls, peer: Peer) -> Holder:
        return cls(network_of(peer.host), peer.is_trusted)


class Quotas:
    """Of one kind: how many under each key, and who holds them."""

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self._limit = limit
        self._trusted, self._others = _Pool(limit, 100), _Pool(limit, SHARE_PERCENT)
        self._of: dict[Hashable, tuple[Holder, int]] = {}

    def __len__(self) -> int:
        """How many all hold."""
        return self._trusted.held + self._others.held

    def of(self, key: Hashable) -> int:
        """How many are held under a key."""
        return self._of[key][1] if key in self._of else 0

    def holder(self, key: Hashable) -> Holder | None:
        """Who holds what is under a key; None where nothing is."""
        return self._of[key][0] if key in self._of else None

    def check(self, key: Hashable, count: int, holder: Holder) -> None:
        """Whether `holder` may have `count` under the key, in place of what is there. Raises RequestError."""
        pool = self._pool(holder)
        before, had = self._of.get(key, (holder, 0))
        more = count - (had if before == holder else 0)
        if more <= 0:
            return
        taken = pool.held - (had if before.is_trusted == holder.is_trusted else 0)
        if taken + count > self._limit:
            raise RequestError(
                f"{pool.held} {self._what} are registered, {self._limit} are allowed; no more are taken. "
                f"{_remedy(holder)}"
            )
        if pool.shares.refuse(holder.host, taken + count - more, more):
            raise RequestError(
                f"{pool.shares.of(holder.host)} {self._what} are registered from {holder.host}, its share of "
                f"{self._limit}; no more are taken. {_remedy(holder)}"
            )

    def hold(self, key: Hashable, count: int, holder: Holder) -> None:
        """So many are under the key now, and held by `holder`, whoever held them before."""
        if self._of.get(key, (holder, 0)) == (holder, count):
            return
        self.put(key, 0)
        if count:
            self._of[key] = (holder, 0)
            self.put(key, count)

    def put(self, key: Hashable, count: int) -> None:
        """So many are under the key now, by whoever holds it; nothing where nobody does."""
        if key not in self._of:
            return
        holder, before = self._of[key]
        pool = self._pool(holder)
        pool.held += count - before
        pool.shares.count(holder.host, count - before)
        if count:
            self._of[key] = (holder, count)
        else:
            del self._of[key]

    def _pool(self, holder: Holder) -> _Pool:
        return self._trusted if holder.is_trusted else self._others


class Held:
    """What is held of each kind: brokers and filter servers by cluster and address, the others by broker name."""

    def __init__(self, limits: Limits) -> None:
        self.brokers = Quotas("brokers", limits.brokers)
        self.queue_datas = Quotas("topics of brokers", limits.queue_datas)
        self.mapped_queues = Quotas("queues of static topics", limits.mapped_queues)
        self.filter_servers = Quotas("filter servers", limits.filter_servers)


def _remedy(holder: Holder) -> str:
    if holder.is_trusted:
        return "Try again when others have gone"
    return "List the host in the name server's lakeBrokerAddresses, or try again when others have gone"
