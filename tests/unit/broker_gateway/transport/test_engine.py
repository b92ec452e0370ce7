"""Connections without a socket: what is much is done in several ticks, and addresses take turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hpack import Encoder

from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.http2.engine import Connection
from broker_gateway.transport.http2.pace import Pace
from broker_gateway.transport.http2.replies import Replies
from tests.support.peers.echo_service import SERVICE
from tests.support.peers.raw_http2 import PREFACE, SETTINGS, RawPeer, frame

CALLS = 1000
A_WHILE_S = 0.001


class Call:
    """Takes a while to open, and to be stopped, when it is told to."""

    stream_id = 0

    def __init__(self, events: list[str], opening_s: float = 0.0, stopping_s: float = 0.0) -> None:
        self._events = events
        self._opening_s, self._stopping_s = opening_s, stopping_s

    def opened(self, *of: Any) -> None:
        time.sleep(self._opening_s)
        self._events.append("opened")

    def data(self, payload: bytes, last: bool) -> None: ...

    def ended(self) -> None: ...

    def writable(self) -> None: ...

    def stopped(self) -> None:
        time.sleep(self._stopping_s)
        self._events.append("stopped")


class Transport(asyncio.Transport):
    """Takes what is written, until it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def connected(
    call: Callable[[], Call], events: list[str], tick: Tick | None = None, pace: Pace | None = None
) -> tuple[Connection, Transport]:
    """A connection whose peer has sent its first settings, on the event loop that runs; `events` has its end."""
    place = ConnectionSlots(lambda: 10).take("127.0.0.1", lambda: None)
    assert place is not None
    tick = tick or Tick()
    connection = Connection(
        tick,
        pace or Pace(tick),
        Replies(1 << 20, lambda *_: None),
        place,
        lambda of: call(),
        lambda of: None,
        lambda of: events.append("closed"),
        lambda of: None,
        max_header_bytes=1 << 15,
        least_ping_interval_s=5.0,
    )
    transport = Transport()
    connection.connection_made(transport)
    connection.data_received(PREFACE + frame(SETTINGS, 0, 0))
    return connection, transport


def requests(extension: bytes = b"") -> list[bytes]:
    peer = RawPeer.__new__(RawPeer)
    peer.encoder = Encoder()
    return [peer.request(2 * n + 1, SERVICE + "Unary", b"") + extension for n in range(CALLS)]


async def ticks_until(done: Callable[[], bool]) -> int:
    ticks = 0
    while not done() and ticks < 100_000:
        ticks += 1
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    return ticks


@pytest.mark.parametrize("beside", [0, 15_000])
def test_calls_of_one_read_are_served_in_several_turns(beside: int) -> None:
    """Each takes a while here: others come to their turn between them, and all are served in the end. `beside`: bytes that
    stand between two calls, so that only few are in a piece that is decoded at once."""
    extension = frame(0xFA, 0, 0, bytes(beside)) if beside else b""

    async def run() -> tuple[int, int, int]:
        events: list[str] = []
        connection, transport = connected(lambda: Call(events, opening_s=A_WHILE_S), events)
        connection.data_received(b"".join(requests(extension)))
        first = len(events)
        ticks = await ticks_until(lambda: len(events) >= CALLS)
        await ticks_until(lambda: transport.reading)
        assert transport.reading
        return first, ticks, len(events)

    first, ticks, served = asyncio.run(run())
    assert first < 500
    assert ticks > 10
    assert served == CALLS


def test_calls_of_a_connection_that_is_lost_are_ended_in_several_turns() -> None:
    async def run() -> tuple[int, list[str]]:
        events: list[str] = []
        connection, _ = connected(lambda: Call(events, stopping_s=A_WHILE_S), events)
        for each in requests():
            connection.data_received(each)
        await ticks_until(lambda: len(events) == CALLS)
        connection.connection_lost(None)
        first = events.count("stopped")
        await ticks_until(lambda: "closed" in events)
        for _ in range(10):  # nothing more comes
            await asyncio.sleep(0)
        return first, events

    first, events = asyncio.run(run())
    assert first < 500
    assert events == ["opened"] * CALLS + ["stopped"] * CALLS + ["closed"]


def test_connections_that_are_lost_together_share_what_their_address_has_of_a_turn() -> None:
    async def run() -> tuple[int, list[str]]:
        tick, events = Tick(), list[str]()
        pace = Pace(tick)
        connections = [
            connected(lambda: Call(events, stopping_s=A_WHILE_S), events, tick, pace)[0] for _ in range(20)
        ]
        for connection in connections:
            for each in requests()[:20]:
                connection.data_received(each)
        await ticks_until(lambda: len(events) == 400)
        for connection in connections:
            connection.connection_lost(None)
        first = events.count("stopped")
        await ticks_until(lambda: events.count("closed") == 20)
        return first, events

    first, events = asyncio.run(run())
    assert first < 50
    assert (events.count("stopped"), events.count("closed")) == (400, 20)


def test_a_connection_whose_peer_is_gone_already_is_closed() -> None:
    async def run() -> None:
        connection, transport = connected(lambda: Call([]), [])
        connection.drain()
        transport.closed = True
        connection.close()

    asyncio.run(run())
