"""Ports: free ones of the loopback address, for programs that cannot choose one themselves and tell it; and whether one is open."""

from __future__ import annotations

import random
import socket

_PORTS = range(12_000, 32_000, 4)
_claimed: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports that are this process's until it ends, each with the one 2 below it, which a broker takes as its fast port.

    They are below those that the system gives to outgoing connections, which may take any of these at any time. A socket
    stays bound to each, without listening: another process that looks for a port finds it taken, and a server, which binds
    with SO_REUSEADDR, does not.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_PORTS)
        claim = [socket.socket(), socket.socket()]
        try:
            for held, number in zip(claim, (port - 2, port), strict=True):
                held.bind(("127.0.0.1", number))
        except OSError:
            for held in claim:
                held.close()
            continue
        for held in claim:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _claimed.extend(claim)
        found.append(port)
    return found


def is_open(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
