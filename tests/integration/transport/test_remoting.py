"""Client and server over loopback sockets: matching, limits, failover, time-outs, closing."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop
from structlog.testing import capture_logs

from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.command import Command, SerializeType
from broker_gateway.protocol.errors import (
    ConnectError,
    EncodeError,
    RequestError,
    RequestTimeoutError,
    SendError,
    TooManyRequestsError,
)
from broker_gateway.protocol.frame import MAX_FRAME, encode
from broker_gateway.transport.remoting.address import is_loopback, parse_address
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors
from broker_gateway.transport.remoting.server import RemotingServer
from tests.suite.evidence import LONG
from tests.support.waiting import LIMIT_S, until

ECHO, LATER, FAILS, REFUSED, NEVER, LARGE, CALLBACK, CLOSE = range(1, 9)


class Served:
    """A server with processors that tests need, and what it saw."""

    def __init__(self) -> None:
        self.requests: list[Command] = []
        self.closed: list[Connection] = []
        self.release = asyncio.Event()
        self.running = 0
        self.most_running = 0
        self.address = ""

    def echo(self, _: Connection, request: Command) -> Command:
        self.requests.append(request)
        return request.reply(fields=request.ext_fields, body=request.body)

    async def later(self, _: Connection, request: Command) -> Command:
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        return request.reply(body=request.body)

    async def fails(self, _: Connection, request: Command) -> Command:
        raise ZeroDivisionError("of the test")

    def refused(self, _: Connection, request: Command) -> Command:
        raise RequestError("not today", ResponseCode.NO_PERMISSION)

    def never(self, _: Connection, request: Command) -> None:
        self.requests.append(request)

    def large(self, _: Connection, request: Command) -> Command:
        return request.reply(body=bytes(int(request.ext_fields["size"])))

    async def callback(self, connection: Connection, request: Command) -> Command:
        """Asks the peer on its own connection before it answers."""
        answer = await connection.invoke(Command(ECHO, body=b"back"), LIMIT_S)
        return request.reply(body=answer.body)

    async def close(self, connection: Connection, request: Command) -> None:
        """Closes the connection behind an answer."""
        asyncio.get_running_loop().call_soon(connection.close, "of the test")
        self.requests.append(request)

    def processors(self) -> Processors:
        found = Processors()
        names = ["echo", "later", "fails", "refused", "never", "large", "callback", "close"]
        for code, name in enumerate(names, ECHO):
            found.register(code, getattr(self, name))
        return found


@asynccontextmanager
async def served(options: ConnectionOptions | None = None, **limits: int) -> AsyncIterator[Served]:
    found = Served()
    server = RemotingServer(found.processors(), options, on_close=found.closed.append, **limits)
    await server.start("127.0.0.1", 0)
    found.address = f"127.0.0.1:{server.port}"
    try:
        yield found
    finally:
        await server.stop(0.2)


@asynccontextmanager
async def client_of(**options: int) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(**options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=LONG)])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def runner(test: Callable[[], Awaitable[None]]) -> None:
        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as loop:
            loop.run(asyncio.wait_for(test(), LIMIT_S))  # type: ignore[arg-type]

    return runner


Run = Callable[[Callable[[], Awaitable[None]]], None]


async def taken(client: RemotingClient, address: str) -> None:
    """What came over other connections of the same event loop was read, where it is read: that takes far fewer turns than this."""
    for _ in range(50):
        answer = await client.invoke(address, Command(99), LIMIT_S)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_answers_find_their_requests_on_one_connection(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of() as client:
            late = [
                asyncio.create_task(client.invoke(server.address, Command(LATER, body=b"%d" % n), LIMIT_S))
                for n in range(20)
            ]
            for number, kind in enumerate([*SerializeType] * 10):
                command = Command(ECHO, {"n": str(number)}, b"x" * number * 1000, serialize_type=kind)
                answer = await client.invoke(server.address, command, LIMIT_S)
                assert (answer.code, answer.ext_fields, answer.body) == (0, command.ext_fields, command.body)
                assert answer.is_response
            await until(lambda: server.running == 20)
            server.release.set()
            assert [(await each).body for each in late] == [b"%d" % n for n in range(20)]
            await client.close()
            await until(lambda: len(server.closed) == 1)

    run(test)


def test_failures_are_answers(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of() as client:
            for code, expected in (
                (99, (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, " request type 99 not supported")),
                (
                    FAILS,
                    (
                        ResponseCode.SYSTEM_ERROR,
                        "the request failed (ZeroDivisionError); the broker's log says more",
                    ),
                ),
                (REFUSED, (ResponseCode.NO_PERMISSION, "not today")),
            ):
                answer = await client.invoke(server.address, Command(code), LIMIT_S)
                assert (answer.code, answer.remark) == expected
            answer = await client.invoke(server.address, Command(LARGE, {"size": str(20 << 20)}), LIMIT_S)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark is not None
            assert "16777216 are allowed" in answer.remark
            with pytest.raises(EncodeError):
                await client.invoke(server.address, Command(ECHO, body=bytes(17 << 20)), LIMIT_S)
            assert (await client.invoke(server.address, Command(ECHO), LIMIT_S)).code == 0

    run(test)


def test_one_way_requests_are_served_and_not_answered(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of() as client:
            for number in range(300):
                await client.invoke_one_way(server.address, Command(ECHO, {"n": str(number)}))
            answer = await client.invoke(server.address, Command(ECHO, {"n": "last"}), LIMIT_S)
            assert answer.ext_fields == {"n": "last"}
            assert [each.ext_fields["n"] for each in server.requests] == [*map(str, range(300)), "last"]
            assert all(each.is_one_way for each in server.requests[:-1])

    run(test)


def test_the_server_asks_its_peer(run: Run) -> None:
    async def test() -> None:
        async with served() as server:
            processors = Processors()
            processors.register(ECHO, lambda _, request: request.reply(body=request.body + b" again"))
            client = RemotingClient(processors)
            answer = await client.invoke(server.address, Command(CALLBACK), LIMIT_S)
            assert answer.body == b"back again"
            await client.close()

    run(test)


def test_no_answer_in_time_closes_a_silent_connection(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of() as client:
            assert (await client.invoke(server.address, Command(ECHO), LIMIT_S)).code == 0  # it is connected
            with pytest.raises(RequestTimeoutError, match="did not answer request 5 within"):
                await client.invoke(server.address, Command(NEVER), 0.2)
            await until(lambda: len(server.closed) == 1)
            assert (await client.invoke(server.address, Command(ECHO), LIMIT_S)).code == 0

    run(test)


def test_a_closed_connection_fails_what_waits_and_is_made_anew(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of() as client:
            waiting = asyncio.create_task(client.invoke(server.address, Command(LATER), LIMIT_S))
            await until(lambda: server.running == 1)
            assert waiting.get_loop() is asyncio.get_running_loop()
            client.disconnect(server.address)
            with pytest.raises(SendError, match="not needed any more"):
                await waiting
            await until(lambda: server.running == 0)  # the server gave the request up
            assert (await client.invoke(server.address, Command(ECHO), LIMIT_S)).code == 0
            assert len(server.closed) == 1

    run(test)


def test_limits_of_the_client(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of(async_limit=2) as client:
            two = [
                asyncio.create_task(client.invoke(server.address, Command(LATER), LIMIT_S)) for _ in range(2)
            ]
            await until(lambda: server.running == 2)
            with pytest.raises(TooManyRequestsError, match="too many requests are under way"):
                await client.invoke(server.address, Command(ECHO), 0.1)
            await client.invoke_one_way(server.address, Command(ECHO))
            waits = asyncio.create_task(client.invoke(server.address, Command(ECHO), LIMIT_S))
            server.release.set()
            assert (await waits).code == 0
            assert [(await each).code for each in two] == [0, 0]

    run(test)


def test_failover_over_addresses(run: Run) -> None:
    async def test() -> None:
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            half_open = f"127.0.0.1:{silent.getsockname()[1]}"
            async with served() as server, client_of() as client:
                addresses = ["127.0.0.1:1", half_open, server.address]
                assert (await client.invoke_first(addresses, Command(ECHO), LIMIT_S)).code == 0
                silent.close()
                assert (await client.invoke_first(addresses, Command(ECHO), LIMIT_S)).code == 0
                for wrong in ("a..b:1", f"{'x' * 64}.org:1"):
                    answer = await client.invoke_first([wrong, server.address], Command(ECHO), LIMIT_S)
                    assert answer.code == 0
                    with pytest.raises(ConnectError, match="no host name"):
                        await client.invoke(wrong, Command(ECHO), LIMIT_S)
                with pytest.raises(ConnectError, match=r"no address answered: 127.0.0.1:1: .*; nonsense: "):
                    await client.invoke_first(["127.0.0.1:1", "nonsense"], Command(ECHO), 0.3)
                with pytest.raises(ConnectError, match="none is configured"):
                    await client.invoke_first([], Command(ECHO))

    run(test)


def test_requests_under_way_are_bounded_and_the_rest_waits(run: Run) -> None:
    async def test() -> None:
        async with served(ConnectionOptions(max_in_flight=4)) as server, client_of() as client:
            tasks = [
                asyncio.create_task(client.invoke(server.address, Command(LATER, body=b"%d" % n), LIMIT_S))
                for n in range(40)
            ]
            await until(lambda: server.running == 4)
            server.release.set()
            assert [(await each).body for each in tasks] == [b"%d" % n for n in range(40)]
            assert server.most_running == 4

    run(test)


def test_bodies_under_way_are_bounded_and_the_rest_waits(run: Run) -> None:
    async def test() -> None:
        options = ConnectionOptions(max_frame=4 << 20)
        async with served(options) as server, client_of() as client:
            tasks = [
                asyncio.create_task(
                    client.invoke(server.address, Command(LATER, body=bytes(1 << 20)), LIMIT_S)
                )
                for _ in range(30)
            ]
            await until(lambda: server.running == 4)
            server.release.set()
            assert {len((await each).body) for each in tasks} == {1 << 20}
            assert server.most_running == 4

    run(test)


def test_a_peer_that_does_not_read_is_not_read_from(run: Run) -> None:
    """Answers pile up to the transport's mark and no further; once the peer reads, all of them come."""

    async def test() -> None:
        async with served() as server, client_of() as client:
            reader, writer = await asyncio.open_connection(*parse_address(server.address), limit=1 << 30)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            request = encode(Command(ECHO, body=bytes(1 << 20)))
            for _ in range(64):
                writer.write(request)
            await until(lambda: server.requests)
            seen = 0
            while seen != len(server.requests):
                seen = len(server.requests)
                await taken(client, server.address)
            assert 0 < seen < 64
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(64):
                length = int.from_bytes(await reader.readexactly(4), "big")
                assert length > 1 << 20
                await reader.readexactly(length)
            assert len(server.requests) == 64
            writer.close()

    run(test)


@pytest.mark.parametrize("begun", [b"", b"\0\0\x10\x00\0\0\x0f\x00{"])
def test_idle_connections_are_closed(run: Run, begun: bytes) -> None:
    """Also those that stopped within a frame and send a byte now and then."""

    async def test() -> None:
        async with served(ConnectionOptions(idle_s=0.3)) as server:
            reader, writer = await asyncio.open_connection(*parse_address(server.address))
            writer.write(begun)
            closed = asyncio.create_task(reader.read())

            def is_closed() -> bool:
                if begun and not closed.done():
                    writer.write(b"x")
                return len(server.closed) == 1

            await until(is_closed, every_s=0.1)
            closed.cancel()
            writer.close()

    run(test)


def test_a_closing_connection_does_not_wait_for_ever(run: Run) -> None:
    """It is closed with 8 MiB unsent that its peer never reads."""

    async def test() -> None:
        async with served(ConnectionOptions(idle_s=0.3)) as server:
            _, writer = await asyncio.open_connection(*parse_address(server.address), limit=1024)
            writer.write(encode(Command(CLOSE)) + encode(Command(LARGE, {"size": str(8 << 20)})))
            await until(lambda: len(server.closed) == 1)
            assert server.requests[0].code == CLOSE
            writer.close()

    run(test)


def test_more_connections_than_allowed_are_closed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ones from this machine have some room more; the log says so once for many."""

    async def test() -> None:
        monkeypatch.setattr("broker_gateway.transport.remoting.server.SPARE", 1)
        async with served(max_connections=1) as server:
            opened = [await asyncio.open_connection(*parse_address(server.address)) for _ in range(2)]
            await echoes(opened)
            with capture_logs() as logged:
                for _ in range(10):
                    reader, _ = await asyncio.open_connection(*parse_address(server.address))
                    with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                        await reader.readexactly(1)
            warnings = [each for each in logged if each["log_level"] == "warning"]
            assert [each["closed"] for each in warnings] == [1]
            await echoes(opened)
            for _, writer in opened:
                writer.close()

    run(test)


async def echoes(opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Each connection is served."""
    for reader, writer in opened:
        writer.write(encode(Command(ECHO)))
        assert await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def test_small_requests_of_one_connection_let_others_in(run: Run) -> None:
    """Each takes a millisecond; another connection's request that comes with the first is not behind all of them."""
    slow, other, served_in_order = 1, 2, list[int]()

    async def test() -> None:
        def work(_: Connection, request: Command) -> Command:
            if not served_in_order:
                second.sendall(encode(Command(other)))
            served_in_order.append(slow)
            time.sleep(0.001)
            return request.reply()

        def quick(_: Connection, request: Command) -> Command:
            served_in_order.append(other)
            return request.reply()

        server = RemotingServer(Processors({slow: work, other: quick}))
        await server.start("127.0.0.1", 0)
        with (
            socket.create_connection(("127.0.0.1", server.port)) as first,
            socket.create_connection(("127.0.0.1", server.port)) as second,
        ):
            await until(lambda: server.connections == 2)
            first.sendall(encode(Command(slow)) * 200)
            await until(lambda: len(served_in_order) == 201)
            assert served_in_order.index(other) < 100
        await server.stop()

    run(test)


def test_headers_of_requests_under_way_are_held(run: Run) -> None:
    async def test() -> None:
        seen: list[Connection] = []
        release = asyncio.Event()

        async def later(connection: Connection, request: Command) -> Command:
            seen.append(connection)
            await release.wait()
            return request.reply()

        server = RemotingServer(Processors({LATER: later}))
        await server.start("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        frame = encode(Command(LATER, {"x": "y" * 500_000}, b"z" * 1000))
        writer.write(frame * 40)
        await until(lambda: len(seen) == -(-MAX_FRAME // len(frame)))
        async with client_of() as client:
            await taken(client, f"127.0.0.1:{server.port}")
        assert len(seen) == -(-MAX_FRAME // len(frame)), "no more is read"
        assert seen[0].held >= len(seen) * len(frame)
        release.set()
        await until(lambda: len(seen) == 40)
        await until(lambda: seen[0].held < 100_000)
        writer.close()
        await server.stop()

    run(test)


def test_many_small_ones_are_bounded_too(run: Run) -> None:
    """80 connections with 32 KiB of a frame each, where 1 MiB may be held."""

    async def test() -> None:
        async with served(max_held=1 << 20) as server, client_of() as client:
            writers = []
            with capture_logs() as logged:
                for number in range(80):
                    _, writer = await asyncio.open_connection(*parse_address(server.address))
                    writer.write((8 << 20).to_bytes(4, "big") + b"\0\0\0\x02{}" + bytes(32 << 10))
                    await writer.drain()
                    writers.append(writer)
                    await until(lambda most=number: len(server.closed) >= most - 32)  # type: ignore[misc]
            assert 48 <= len(server.closed) < 60
            assert len([each for each in logged if each["log_level"] == "warning"]) == 1
            assert (await client.invoke(server.address, Command(ECHO, body=bytes(1000)), LIMIT_S)).code == 0
            for writer in writers:
                writer.close()

    run(test)


def test_what_is_held_is_bounded(run: Run) -> None:
    """Frames that are begun and left: the oldest goes when the sum is too large; others are served."""

    async def test() -> None:
        async with served(max_held=4 << 20) as server, client_of() as client:
            writers = []
            for _ in range(6):
                _, writer = await asyncio.open_connection(*parse_address(server.address))
                writer.write((8 << 20).to_bytes(4, "big") + b"\0\0\0\x02{}" + bytes(1 << 20))
                await writer.drain()
                writers.append(writer)
                await taken(client, server.address)
            await until(lambda: len(server.closed) >= 2)
            assert (
                await client.invoke(server.address, Command(ECHO, body=bytes(1 << 20)), LIMIT_S)
            ).code == 0
            held = [each.held for each in server.closed]
            assert held == [0] * len(held)
            for writer in writers:
                writer.close()

    run(test)


def test_stop_lets_requests_end(run: Run) -> None:
    async def test() -> None:
        found = Served()
        server = RemotingServer(found.processors())
        await server.start("127.0.0.1", 0)
        client = RemotingClient()
        address = f"127.0.0.1:{server.port}"
        waiting = asyncio.create_task(client.invoke(address, Command(LATER), LIMIT_S))

        async def refused() -> bool:
            try:
                _, writer = await asyncio.open_connection(*parse_address(address))
            except ConnectionRefusedError:
                return True
            writer.close()
            return False

        await until(lambda: found.running == 1)
        stopping = asyncio.create_task(server.stop(LIMIT_S))
        await until(refused)
        assert not stopping.done()
        found.release.set()
        assert (await waiting).code == 0
        await stopping
        with pytest.raises(ConnectError):
            await client.invoke(address, Command(ECHO))
        await client.close()
        with pytest.raises(ConnectError, match="the client is closed"):
            await client.invoke(address, Command(ECHO))

    run(test)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x", "host:٣", "a:1111111"]
)
def test_wrong_addresses_are_named(text: str) -> None:
    with pytest.raises(ConnectError, match="write it as host:port"):
        parse_address(text)


def test_addresses() -> None:
    assert parse_address("[::1]:9876") == ("::1", 9876)
    assert [is_loopback(each) for each in ("127.9.9.9", "::1", "::ffff:127.0.0.1", "10.0.0.1", "", "x")] == [
        *(True, True, True),
        *(False, False, False),
    ]


def test_whoever_is_cancelled_while_it_connects_is_cancelled() -> None:
    """Also when the connecting is cancelled with it, as at the end of an event loop."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            client = RemotingClient()
            asking = asyncio.create_task(client.invoke(address, Command(1)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            (connecting,) = asyncio.all_tasks() - {asking, asyncio.current_task()}
            connecting.cancel()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await client.close()

    asyncio.run(scenario())


def test_garbage_from_an_address_is_one_line_however_many_connections_bring_it(run: Run) -> None:
    async def test() -> None:
        async with served() as server:
            host, _, port = server.address.rpartition(":")
            with capture_logs() as lines:
                for number in range(50):
                    source = (f"127.0.0.{3 + number % 2}", 0)
                    reader, writer = await asyncio.open_connection(host, int(port), local_addr=source)
                    writer.write(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n")
                    with suppress(ConnectionError):
                        assert not await reader.read()
                    writer.close()
            broken = [each for each in lines if "broke the protocol" in each["event"]]
            assert [each["peer"].rpartition(":")[0] for each in broken] == ["127.0.0.3", "127.0.0.4"]

    run(test)


def test_requests_that_fail_are_told_a_few_times_each_minute(run: Run) -> None:
    async def test() -> None:
        async with served() as server, client_of() as client:
            with capture_logs() as lines:
                for _ in range(50):
                    assert (
                        await client.invoke(server.address, Command(FAILS), LIMIT_S)
                    ).code == ResponseCode.SYSTEM_ERROR
            assert len([each for each in lines if each["event"] == "a request failed"]) == 10

    run(test)
