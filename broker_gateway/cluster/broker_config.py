"""Where another lakebroker serves gRPC, as its configuration (GET_BROKER_CONFIG) says."""

from __future__ import annotations

import re
from typing import NamedTuple

from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command

MARK = "lakeTransport"
"""An option that only lakebroker has."""
PUBLIC = (
    "brokerName",
    "brokerClusterName",
    "brokerId",
    "brokerIP1",
    "listenPort",
    "grpcServerPort",
    MARK,
)
"""What other machines are told: enough to reach the broker's gRPC port."""
MAX_BODY = 256 << 10
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}")


class Member(NamedTuple):
    """A lakebroker: the endpoint of its gRPC server."""

    name: str
    host: str
    grpc_port: int


class NoMemberError(Exception):
    """The broker is no lakebroker, or its configuration makes no sense; the text says which."""


GET_BROKER_CONFIG = Command(RequestCode.GET_BROKER_CONFIG)


def member_of(name: str, body: bytes) -> Member:
    """The member registered as `name` that has this configuration. Raises NoMemberError."""
    if len(body) > MAX_BODY:
        raise NoMemberError(f"its configuration has {len(body)} bytes, where {MAX_BODY} are allowed")
    options = {}
    for line in body.decode("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        options[key.strip()] = value.strip()
    if MARK not in options:
        raise NoMemberError("it is no lakebroker, and has no gRPC endpoint")
    if options.get("brokerName") != name:
        raise NoMemberError(f"it says that its name is {options.get('brokerName', '')[:80]!r}")
    host, port = options.get("brokerIP1", ""), options.get("grpcServerPort", "")
    if not _HOST.fullmatch(host):
        raise NoMemberError(f"brokerIP1 {host[:80]!r} is no host")
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise NoMemberError(f"grpcServerPort {port[:80]!r} is no port of 1 to 65535")
    return Member(name, host, int(port))
