"""The remoting ports: `listenPort` and the fast port, two below it.

They are taken before the store is opened, because records carry the port, and listened on when the broker serves. Who
has a port without listening must keep others off it: a socket with SO_REUSEADDR lets others with the same option bind
the port too, as long as none listens. So it is set only to get past connections of a former process (TIME_WAIT), and
again when listening begins, for the connections to inherit it.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import Any

from broker_gateway.config import FAST_PORT_BELOW, HA_PORT_ABOVE, GatewayConfig
from broker_gateway.errors import OptionError, StartError

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
                _reuse(each, True)
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
            f"option bindAddress={address}: it is no address of this host ({error}); "
            "give an IP address, 0.0.0.0 for all"
        ) from error
    return found[0][0], found[0][4]


def _take(family: int, resolved: tuple[Any, ...], port: int) -> tuple[tuple[socket.socket, ...], int]:
    first = _bound(family, resolved, port)
    try:
        port = int(first.getsockname()[1])
        if not FAST_PORT_BELOW < port <= 65535 - HA_PORT_ABOVE:
            raise OSError(errno.EADDRINUSE, f"{port} leaves no room for the ports beside it")
        return (first, _bound(family, resolved, port - FAST_PORT_BELOW)), port
    except BaseException:
        first.close()
        raise


def _bound(family: int, resolved: tuple[Any, ...], port: int) -> socket.socket:
    """A socket that no other one shares the port with."""
    address = (resolved[0], port, *resolved[2:])
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        try:
            found.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == 0:
                raise
            _reuse(found, True)
            found.bind(address)
            _reuse(found, False)
    except BaseException:
        found.close()
        raise
    found.setblocking(False)
    return found


def _reuse(sock: socket.socket, on: bool) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(on))
