"""Who may speak for a broker, by the address that a request comes from. Anybody who reaches the port may register one.

| what                                                            | who may |
|-----------------------------------------------------------------|---------|
| register a name with an id, or an address, that nobody alive has | anybody |
| register one that somebody alive has, as a new address or again | the host that registered it, a trusted one |
| register another id of a name that somebody alive has            | anybody; its zone, and whether slaves act as master, stay |
| unregister, give signs of life, change single topics of a broker | the host that registered it, a trusted one |

Trusted are this machine and the hosts in `lakeBrokerAddresses`. A registration is *tied* to its address when it came from
there or from a trusted host, or when the address is listed: only such addresses are connected to by us. What a host that
is not trusted may hold is bounded beside that of others (`quotas`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from broker_gateway.nameserver.brokers import Broker, BrokerKey, LiveBroker
from broker_gateway.protocol.body.route import MASTER_ID
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.address import is_loopback, parse_address
from broker_gateway.transport.remoting.trusted_hosts import TrustedHosts, same_host, trusted_hosts


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a request comes from. `listed`: the hosts of `lakeBrokerAddresses`."""

    host: str
    listed: TrustedHosts

    @property
    def is_trusted(self) -> bool:
        return is_loopback(self.host) or self.host in self.listed

    def may_speak_for(self, registered_from: str) -> bool:
        """Whether it may change what came from that host."""
        return same_host(self.host, registered_from) or self.is_trusted

    def is_tied_to(self, address: str) -> bool:
        """Whether a broker's address that it registers is its own, or one that the operator vouches for."""
        if self.is_trusted:
            return True
        host, _ = parse_address(address)
        return same_host(host, self.host) or host in self.listed


OWN_MACHINE = Peer("127.0.0.1", trusted_hosts(""))
"""As if it came from here."""


class Known(Protocol):
    """The brokers that are there."""

    @property
    def brokers(self) -> Mapping[str, Broker]:
        """By name."""

    @property
    def live(self) -> Mapping[BrokerKey, LiveBroker]:
        """By cluster and address."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The broker that a request speaks for."""

    cluster: str
    address: str
    broker_name: str
    broker_id: int


def check_claim(known: Known, claim: Claim, peer: Peer) -> None:
    """Raises RequestError when somebody alive has this name and id, or this address, and `peer` may not speak for it. An
    id below the master's is a claim on its place."""
    keys = {(claim.cluster, claim.address)}
    broker = known.brokers.get(claim.broker_name)
    if broker is not None:
        keys |= {
            (broker.clusters[number], addr)
            for number, addr in broker.broker_addrs.items()
            if addr == claim.address or number == max(claim.broker_id, MASTER_ID)
        }
    for key in keys:
        live = known.live.get(key)
        if live is not None and not peer.may_speak_for(live.registered_from):
            raise RequestError(
                f"broker {claim.broker_name} with id {claim.broker_id} at {claim.address}: {key[1]}, registered from "
                f"{live.registered_from}, is alive, and {peer.host} may not speak for it; try again when it is "
                "gone, or list this host in the name server's lakeBrokerAddresses"
            )
