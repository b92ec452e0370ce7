"""Who may speak for a broker, by the address that a request comes from. Anybody who reaches the port may register one.

| what                                                            | who may |
|-----------------------------------------------------------------|---------|
| register a name with an id, or an address, that nobody alive has | anybody |
| register one that somebody alive has, as a new address or again | the host that registered it, a trusted one |
| register another id of a name that somebody alive has            | anybody; its zone, and whether slaves act as master, stay |
| unregister, give signs of life, change single topics of a broker | the host that registered it, a trusted one |

Trusted are this machine and the hosts in `lakeBrokerAddresses`. A registration is *tied* to its address when it came from
there or from a trusted host, or when the address is listed: only such addresses are connected to by us.
"""

from __future__ import annotations

from dataclasses import dataclass

from broker_gateway.remoting.address import is_loopback, parse_address
from broker_gateway.remoting.trusted_hosts import TrustedHosts, same_host, trusted_hosts


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
