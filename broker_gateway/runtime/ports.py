"""Taking a port without listening on it, and what to say of one that cannot be taken.

A socket with SO_REUSEADDR lets others with the same option bind its port too, as long as none listens. So it is set
only to get past connections of a former process (TIME_WAIT).
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from broker_gateway.runtime.errors import StartError


class Wanted(NamedTuple):
    """A port and its address, each with the option that names it."""

    port_option: str
    port: int
    address_option: str
    address: str

    def refused(self, error: Exception) -> StartError:
        """The error to raise when it cannot be opened."""
        if is_address_unknown(error):
            return StartError(
                f"{self.address_option}={self.address} is not an address of this host ({error}); give one of its IP "
                "addresses, or 0.0.0.0 for all of them"
            )
        return StartError(
            f"port {self.port} of {self.address} cannot be opened ({error}); choose another {self.port_option}"
        )


def is_address_unknown(error: Exception) -> bool:
    """Whether a port could not be opened because its address is not this host's, or none at all."""
    if isinstance(error, OSError) and error.errno == errno.EADDRNOTAVAIL:
        return True
    return isinstance(error, (socket.gaierror, UnicodeError))


def check_ports(wanted: Sequence[Wanted]) -> None:
    """Takes all of them at a time and gives them back. Raises StartError for the first that is taken, or that two want.

    An IPv6 address is taken without IPv4 behind it: some of the transports open it so.
    """
    with ExitStack() as held:
        for each in wanted:
            family = socket.AF_INET6 if ":" in each.address else socket.AF_INET
            try:
                held.enter_context(bound_socket(family, (each.address, each.port), with_ipv4=False))
            except (OSError, UnicodeError) as error:
                raise each.refused(error) from error


def bound_socket(family: int, address: tuple[Any, ...], *, with_ipv4: bool = True) -> socket.socket:
    """A socket, not blocking, that no other one shares the port with; one of `::` may have IPv4's too.

    Raises OSError, UnicodeError.
    """
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6 and not with_ipv4:
            found.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            found.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or address[1] == 0:
                raise
            allow_reuse(found, True)
            found.bind(address)
            allow_reuse(found, False)
    except BaseException:
        found.close()
        raise
    found.setblocking(False)
    return found


def allow_reuse(sock: socket.socket, on: bool) -> None:
    """Sets SO_REUSEADDR."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(on))
