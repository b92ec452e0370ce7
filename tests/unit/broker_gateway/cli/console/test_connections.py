"""Who sends no request, or one without an end, keeps no connection of the console."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from broker_gateway.cli.console import connections
from broker_gateway.cli.console.connections import MOST_HEAD_BYTES, Connection, PassedOn, counted_as
from tests.support.waiting import LIMIT_S, wait_until

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Impatient(Connection):
    request_s = 0.3
    answer_s = 0.6
    lost = threading.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.set()


async def page(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the body that came; at /large with more than buffers take."""
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] != "http.request":
            return
        body, more = body + event["body"], event["more_body"]
    body = b"x" * (64 << 20) if scope["path"] == "/large" else body
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(protocol: type[Connection]) -> Iterator[int]:
    """A port."""
    config = uvicorn.Config(
        page,
        http=protocol,
        h11_max_incomplete_event_size=MOST_HEAD_BYTES,
        log_level="critical",
        lifespan="off",
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as port:
        thread = threading.Thread(target=server.run, args=([port],))
        thread.start()
        try:
            yield port.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            thread.join()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)


def end(connection: socket.socket) -> bytes:
    """What still comes, until the other side ends it."""
    found = b""
    try:
        while data := connection.recv(1 << 16):
            found += data
    except ConnectionError:
        pass
    return found


def drip(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def test_a_connection_without_a_whole_request_ends() -> None:
    with served(Impatient) as port:
        for begun in (b"", b"GET / HTT", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nfour"):
            with connected(port) as connection:
                connection.sendall(begun)
                assert end(connection) == b""


def test_a_byte_more_gives_no_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Impatient, "request_s", LIMIT_S)
    with served(Impatient) as port, connected(port) as connection:
        connection.sendall(GET)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(Impatient, "request_s", 0.3)
        connection.sendall(b"GET / HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            drip(connection)


def test_an_answer_that_nobody_reads_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Impatient, "request_s", 3.0)  # what a busy machine takes to read the request
    with served(Impatient) as port, connected(port) as connection:
        Impatient.lost.clear()
        connection.sendall(GET.replace(b"/", b"/large", 1))
        assert connection.recv(1).startswith(b"H")
        Impatient.lost.wait(LIMIT_S)
        assert len(end(connection)) < 64 << 20


def test_a_head_has_an_end() -> None:
    with served(Connection) as port:
        with connected(port) as connection:
            connection.sendall(GET.replace(b"Host", b"X: %s\r\nHost" % (b"x" * (MOST_HEAD_BYTES // 2))))
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        with connected(port) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * (MOST_HEAD_BYTES + 1))
            assert end(connection).startswith(b"HTTP/1.1 400")


def test_requests_one_after_the_other_and_at_once_are_answered() -> None:
    with served(Connection) as port, connected(port) as connection:
        for _ in range(3):
            connection.sendall(GET)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(GET * 3)
        found = b""
        while found.count(b"HTTP/1.1 200") < 3:
            found += connection.recv(1 << 16)


class Counted(Connection):
    """As if this machine were another."""

    def counted(self, peer: str) -> str:
        return peer


def test_one_address_has_so_many_connections_and_those_that_end_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MOST_OF_ADDRESS", 2)
    with served(Counted) as port:
        with connected(port) as first, connected(port) as second:
            for each in (first, second):
                each.sendall(GET)
                assert each.recv(1 << 16).startswith(b"HTTP/1.1 200")
            with connected(port) as third:
                assert end(third) == b""
        wait_until(lambda: not Counted.by_address)
        with connected(port) as again:
            again.sendall(GET)
            assert again.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("protocol", [Connection, PassedOn])
def test_what_comes_from_this_machine_or_a_proxy_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, protocol: type[Connection]
) -> None:
    monkeypatch.setattr(connections, "MOST_OF_ADDRESS", 0)
    with served(protocol) as port, connected(port) as connection:
        connection.sendall(GET)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_addresses_of_a_network_count_as_one() -> None:
    assert counted_as("10.0.0.7") == counted_as("::ffff:10.0.0.7") == "10.0.0.7"
    assert counted_as("2001:db8::1") == counted_as("2001:db8::2%eth0") == "2001:db8::/64"
    assert counted_as("127.0.0.1") is counted_as("::1") is counted_as("::ffff:127.0.0.1") is None
