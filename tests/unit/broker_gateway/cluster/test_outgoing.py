"""Connections to name servers and other brokers: the times that options give them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from broker_gateway.cluster.outgoing import outgoing
from broker_gateway.config.gateway import load_config
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import ConnectError
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import Connection, Processors
from broker_gateway.transport.remoting.server import RemotingServer
from tests.support.waiting import LIMIT_S, LoopClock


@contextlib.asynccontextmanager
async def client_of(lost: list[str], **options: str) -> AsyncIterator[RemotingClient]:
    client = outgoing(load_config(None, options, {})[0].registration, lost.append)
    try:
        yield client
    finally:
        await client.close()


def test_a_connection_without_requests_is_closed() -> None:
    def answer(_: Connection, request: Command) -> Command:
        return request.reply()

    async def scenario() -> None:
        clock = LoopClock()
        server, lost = RemotingServer(Processors(default=answer)), list[str]()
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        async with client_of(lost, clientChannelMaxIdleTimeSeconds="100") as client:
            assert (await client.invoke(address, Command(1))).code == 0
            assert client.peer_host(address) == "127.0.0.1"
            await clock.move(60)
            assert (await client.invoke(address, Command(1))).code == 0
            await clock.move(60)
            assert (lost, server.connections) == ([], 1), "the request counts"
            await clock.move(60)
            await clock.until(lambda: (lost, server.connections) == ([address], 0))
            assert client.peer_host(address) is None
        await server.stop()

    asyncio.run(scenario())


def test_connecting_takes_no_longer_than_the_option_says() -> None:
    async def scenario() -> None:
        with socket.socket() as full, contextlib.ExitStack() as held:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for _ in range(4):  # nobody accepts, and there is no room to wait
                other = held.enter_context(socket.socket())
                other.setblocking(False)
                other.connect_ex(full.getsockname())
            async with client_of([], connectTimeoutMillis="300") as client:
                with pytest.raises(ConnectError, match=r"no connection in 0\.3 s"):
                    await client.invoke(f"127.0.0.1:{full.getsockname()[1]}", Command(1), LIMIT_S)

    asyncio.run(scenario())
