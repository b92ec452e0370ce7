"""Every call of every port passes the policy: real ports, real clients, and a policy that refuses all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from broker_gateway.api.extensions import Extensions
from broker_gateway.api.grpc.log import LogService
from broker_gateway.api.remoting.handed_over import HandedOverRequests
from broker_gateway.api.remoting.ports import take_ports
from broker_gateway.api.remoting.server import RemotingEndpoint
from broker_gateway.app.broker import Broker
from broker_gateway.app.grpc_server import bind
from broker_gateway.auth.grpc_calls import authorized
from broker_gateway.auth.policy import Denial, NotAuthorizedError
from broker_gateway.auth.principal import Principal
from broker_gateway.auth.requests import BROKER_REQUESTS, NAME_SERVER_REQUESTS
from broker_gateway.auth.rpcs import RPCS
from broker_gateway.auth.rules import Rule
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.nameserver import config as namesrv_config
from broker_gateway.nameserver.server import NameServer
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.transport.remoting.client import RemotingClient
from store.log_source import StoreLog
from tests.support.brokers.running import running
from tests.support.waiting import LIMIT_S


class Nobody:
    """Refuses everything."""

    def open_to_all(self, rule: Rule) -> bool:
        return False

    def authorize(self, principal: Principal, rule: Rule, names: Sequence[str] = ()) -> None:
        assert principal.loopback
        raise NotAuthorizedError(Denial.FORBIDDEN, "is for nobody")


async def refused_rpcs(config: GatewayConfig, broker: Broker) -> set[str]:
    """The RPCs that a client is refused over the gRPC port; it sends nothing in them."""
    places = ConnectionSlots(lambda: 100, 100)
    around = authorized(Nobody(), RPCS)
    server, _ = bind(config, broker, LogService(StoreLog(broker.core.store)), around, places)
    await server.start()
    found = set()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            for path in RPCS:
                try:
                    await asyncio.wait_for(call_with_nothing(channel, path), LIMIT_S)
                except grpc.aio.AioRpcError as error:
                    if (error.code().name, error.details()) == ("PERMISSION_DENIED", "is for nobody"):
                        found.add(path)
    finally:
        await server.stop(0)
    return found


async def call_with_nothing(channel: grpc.aio.Channel, path: str) -> None:
    if path.endswith(("/Telemetry", "/ServerReflectionInfo")):
        await channel.stream_stream(path)().read()
        return
    if path.endswith(("/ReceiveMessage", "/PullMessage", "/ReadLog", "/Watch")):
        call = channel.unary_stream(path)(b"")
    else:
        await channel.unary_unary(path)(b"")
        return
    async for _ in call:
        pass


async def answers(port: int) -> dict[RequestCode, tuple[int, str]]:
    """Code and remark of the answer to each request there is."""
    client = RemotingClient()
    try:
        found = {}
        for code in RequestCode:
            answer = await client.invoke(f"127.0.0.1:{port}", Command(code), LIMIT_S)
            found[code] = answer.code, answer.remark or ""
        return found
    finally:
        await client.close()


@pytest.mark.parametrize("transport", ["http2", "grpcio"])  # each binds the policy by itself
def test_no_rpc_gets_past_the_policy(tmp_path: Path, transport: str) -> None:
    async def test() -> None:
        given = {"lakeTransport": transport, "grpcServerPort": "0", "grpcBindAddress": "127.0.0.1"}
        if transport == "http2":
            given["tlsTestModeEnable"] = "false"
        config = load_config(None, {"storePathRootDir": str(tmp_path), **given}, {})[0]
        async with running(tmp_path / "store") as broker:
            assert await refused_rpcs(config, broker) == set(RPCS)

    asyncio.run(test())


def expected(rules: dict[RequestCode, Rule]) -> dict[RequestCode, tuple[int, str]]:
    """Every request that is bound is refused; the others are answered as not supported."""
    unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return {
        code: (ResponseCode.NO_PERMISSION, f"{code.name} is for nobody")
        if code in rules
        else (unknown, f" request type {int(code)} not supported")
        for code in RequestCode
    }


def test_no_request_to_a_broker_gets_past_the_policy(tmp_path: Path) -> None:
    async def test() -> None:
        config = load_config(None, {"listenPort": "0", "bindAddress": "127.0.0.1"}, {})[0]
        async with running(tmp_path) as broker:
            calls = broker.messaging
            others = (
                broker.registration,
                HandedOverRequests(calls.send_ordered, calls.lite_subscription_told),
            )
            door = RemotingEndpoint(
                config, broker.administration, broker.admission, Extensions(), others, Nobody()
            )
            ports = take_ports(config)
            await door.start(ports)
            try:
                assert await answers(ports.port) == expected(BROKER_REQUESTS)
            finally:
                await door.stop()

    asyncio.run(test())


def test_no_request_to_a_name_server_gets_past_the_policy() -> None:
    async def test() -> None:
        config = namesrv_config.load_config(None, {"listenPort": "0", "bindAddress": "127.0.0.1"}, {})[0]
        server = NameServer(config, policy=Nobody())
        await server.start()
        try:
            assert await answers(server.port) == expected(NAME_SERVER_REQUESTS)
        finally:
            await server.stop()

    asyncio.run(test())
