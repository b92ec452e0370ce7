"""A name server in this process, and clients that ask it as a broker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from broker_gateway.nameserver.config import load_config
from broker_gateway.nameserver.server import NameServer
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from tests.support.waiting import LIMIT_S

BODY = RegisterBrokerBody(
    DataVersion(0, 5, 7), {name: TopicConfig(name, 4, 8) for name in ("orders", "other")}
)


class Broker:
    """A client of the name server that registers as a broker."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = RemotingClient()

    async def ask(self, code: RequestCode, body: bytes = b"", version: int = 513, **fields: Any) -> Command:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.client.invoke(self.address, Command(code, texts, body, version=version), LIMIT_S)

    async def register(self, body: bytes, version: int = 513, **fields: Any) -> Command:
        header = {
            "brokerName": "b",
            "brokerAddr": "127.0.0.1:1",
            "clusterName": "c",
            "haServerAddr": "127.0.0.1:2",
            "brokerId": 0,
            "compressed": "false",
            "bodyCrc32": 0,
            **fields,
        }
        return await self.ask(RequestCode.REGISTER_BROKER, body, version, **header)

    async def route(self, topic: str = "orders", **fields: Any) -> Command:
        return await self.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **fields)


@asynccontextmanager
async def running(folder: Path, **options: str) -> AsyncIterator[tuple[NameServer, Broker]]:
    """A name server, and a broker that is connected to it."""
    given = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "kvConfigPath": str(folder / "kvConfig.json"),
        "configStorePath": str(folder / "namesrv.properties"),
        **options,
    }
    server = NameServer(load_config(None, given, {})[0])
    await server.start()
    broker = Broker(f"127.0.0.1:{server.port}")
    try:
        yield server, broker
    finally:
        await broker.client.close()
        await server.stop()


@asynccontextmanager
async def name_server(folder: Path, **options: str) -> AsyncIterator[Broker]:
    async with running(folder, **options) as (_, broker):
        yield broker


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test()

    asyncio.run(bounded())
