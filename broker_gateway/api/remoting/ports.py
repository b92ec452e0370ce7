"""The remoting ports: `listenPort` and the fast port, two below it.

They are taken before the store is opened, because records carry the port, and listened on when the broker serves. Who
has a port without listening must keep others off it (`bound_socket`); SO_REUSEADDR is set again when listening begins,
for the connections to inherit it.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Any

from broker_gateway.config.broker_options import FAST_PORT_BELOW, HA_PORT_ABOVE
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.runtime.errors import OptionError, StartError
from broker_gateway.runtime.ports import Wanted, allow_reuse, bound_socket, is_address_unknown

_ATTEMPTS = 200
_BACKLOG = 1024


@dataclass(slots=True)
class Ports:
    """Bound sockets: of `listenPort`, and of the fast port."""

    sockets: tuple[socket.socket, ...]
    port: int
    address: str

    def listen(self) -> None:
        """From here on connections are taken. Raises StartError."""
        try:
            for each in self.sockets:
                allow_reuse(each, True)
                each.listen(_BACKLOG)
        except OSError as error:
            raise _refused(self.port, self.address, error) from error

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def take_ports(config: GatewayConfig) -> Ports:
    """Takes the ports, free ones for 0. Raises StartError."""
    address, wanted = config.server.bind_address, config.broker.listen_port
    family, resolved = _resolved(address)
    for attempt in range(_ATTEMPTS):
        try:
            return Ports(*_take(family, resolved, wanted), address)
        except OSError as error:
            again = wanted == 0 and error.errno == errno.EADDRINUSE and attempt < _ATTEMPTS - 1
            if not again:
                raise _refused(wanted, address, error) from error
    raise AssertionError


def _refused(port: int, address: str, error: OSError) -> StartError:
    if is_address_unknown(error):
        return Wanted("listenPort", port, "bindAddress", address).refused(error)
    return StartError(
        f"listenPort {port} of {address}, or the fast port {FAST_PORT_BELOW} below it, cannot be opened ({error}); "
        "choose another listenPort or bindAddress"
    )


def _resolved(address: str) -> tuple[int, tuple[Any, ...]]:
    """Family and socket address. Raises OptionError."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise OptionError(
            f"option bindAddress={address}: it is not an address of this host ({error}); "
            "give an IP address, 0.0.0.0 for all"
        ) from error
    return found[0][0], found[0][4]


def _take(family: int, resolved: tuple[Any, ...], port: int) -> tuple[tuple[socket.socket, ...], int]:
    first = bound_socket(family, (resolved[0], port, *resolved[2:]))
    try:
        port = int(first.getsockname()[1])
        if not FAST_PORT_BELOW < port <= 65535 - HA_PORT_ABOVE:
            raise OSError(errno.EADDRINUSE, f"{port} leaves no room for the ports beside it")
        below = (resolved[0], port - FAST_PORT_BELOW, *resolved[2:])
        return (first, bound_socket(family, below)), port
    except BaseException:
        first.close()
        raise
