"""The remoting ports: whoever has them has them alone, before anybody can connect."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from broker_gateway.api.remoting.ports import Ports, take_ports
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.runtime.errors import OptionError, StartError
from broker_gateway.runtime.ports import Wanted, check_ports
from lakebroker_testing.ports import free_ports
from tests.support.waiting import LIMIT_S


def config(port: int, address: str = "127.0.0.1") -> GatewayConfig:
    return load_config(None, {"listenPort": str(port), "bindAddress": address}, {})[0]


def connect(ports: Ports) -> socket.socket:
    return socket.create_connection(("127.0.0.1", ports.port), LIMIT_S)


def assert_taken(port: int) -> None:
    with pytest.raises(StartError, match=f"listenPort {port} of 127.0.0.1.*choose another listenPort"):
        take_ports(config(port))


def left_by_connections() -> int:
    """A port with a connection in TIME_WAIT, as a broker that was stopped leaves it."""
    ports = take_ports(config(*free_ports(1)))
    ports.listen()
    with connect(ports) as client:
        ports.sockets[0].setblocking(True)
        ports.sockets[0].accept()[0].close()  # the first to close keeps the state
        assert client.recv(1) == b""
    ports.close()
    with socket.socket() as plain, pytest.raises(OSError, match="in use"):
        plain.bind(("127.0.0.1", ports.port))
    return ports.port


@pytest.mark.parametrize("again", [False, True])
def test_ports_are_had_alone_and_closed_until_listened_on(again: bool) -> None:
    ports = take_ports(config(left_by_connections() if again else 0))
    try:
        for each in ports.sockets:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(each.getsockname(), LIMIT_S)
        assert_taken(ports.port)
        assert_taken(ports.port + 2)  # its fast port
        ports.listen()
        for each in ports.sockets:
            socket.create_connection(each.getsockname(), LIMIT_S).close()
        assert_taken(ports.port)
    finally:
        ports.close()


def test_a_port_that_others_opened_meanwhile_is_named() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        (port,) = free_ports(1)
        other.bind(("127.0.0.1", port))
        ports = take_ports(config(port))  # a program that shares, and does not listen yet
        with pytest.raises(OSError, match="in use"):
            other.listen()
        ports.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the moment before we do
        other.listen()
        with pytest.raises(StartError, match=f"listenPort {port} of 127.0.0.1"):
            ports.listen()
        ports.close()


@pytest.mark.parametrize("port", [0, 20911])
def test_an_address_that_cannot_be_resolved_is_looked_up_once(
    monkeypatch: pytest.MonkeyPatch, port: int
) -> None:
    asked = []

    def unknown(*given: Any, **_: Any) -> None:
        asked.append(given[0])
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(OptionError, match=r"option bindAddress=nowhere: .*give an IP address"):
        take_ports(config(port, "nowhere"))
    assert asked == ["nowhere"]


def test_an_address_of_another_host_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    class Counted(socket.socket):
        def bind(self, address: Any) -> None:
            tried.append(address)
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket, "socket", Counted)
    with pytest.raises(StartError, match=r"bindAddress=192\.0\.2\.1 is not an address of this host"):
        take_ports(config(0, "192.0.2.1"))
    assert len(tried) == 1


def test_an_ipv6_port_may_be_anothers_of_ipv4() -> None:
    """As the transport http2 opens it."""
    with socket.create_server(("0.0.0.0", 0)) as other:
        wanted = Wanted("grpcServerPort", other.getsockname()[1], "grpcBindAddress", "::")
        check_ports([wanted])
        with (
            socket.create_server(("::", wanted.port), family=socket.AF_INET6),
            pytest.raises(StartError, match="choose another grpcServerPort"),
        ):
            check_ports([wanted])
