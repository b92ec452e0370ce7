"""The remoting ports: `listenPort` and the fast port, two below it.

They are taken before the store is opened, because records carry the port, and listened on when the broker serves.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

from broker_gateway.config import GatewayConfig
from broker_gateway.errors import StartError

FAST = 2
_ATTEMPTS = 200


@dataclass(slots=True)
class Ports:
    """Bound sockets: of `listenPort`, and of the fast port."""

    sockets: tuple[socket.socket, ...]
    port: int

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def take_ports(config: GatewayConfig) -> Ports:
    """Takes the ports, free ones for 0. Raises StartError."""
    address, wanted = config.server.bind_address, config.broker.listen_port
    if 0 < wanted <= FAST:
        raise StartError(
            f"listenPort={wanted} leaves no room for the fast port, {FAST} below; choose a higher one"
        )
    for attempt in range(_ATTEMPTS):
        try:
            return _take(address, wanted)
        except OSError as error:
            if wanted or attempt == _ATTEMPTS - 1:
                raise StartError(
                    f"listenPort {wanted} of {address}, or the fast port {FAST} below it, cannot be opened"
                    f" ({error}); choose another listenPort or bindAddress"
                ) from error
    raise AssertionError


def _take(address: str, port: int) -> Ports:
    first = _bound(address, port)
    port = int(first.getsockname()[1])
    try:
        return Ports((first, _bound(address, port - FAST)), port)
    except (OSError, OverflowError) as error:
        first.close()
        raise OSError(str(error)) from error


def _bound(address: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    found = socket.socket(family[0], socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(family[4])
    except BaseException:
        found.close()
        raise
    found.setblocking(False)
    return found
