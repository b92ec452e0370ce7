"""A gateway whose remoting ports are among hostile and idle peers: others are served meanwhile, over gRPC too, its memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.api.remoting.administration.connections import decode_heartbeat
from broker_gateway.messaging.connections import MAX_HELD
from broker_gateway.metadata.system_groups import SYSTEM_GROUPS
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.frame import Decoder, encode
from broker_gateway.protocol.java_json import JsonObject
from broker_gateway.transport.remoting.client import RemotingClient
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.suite.evidence import rounds
from tests.support.peers.hostile_remoting import (
    BOMBS,
    Record,
    connect,
    forget_peak,
    hostile_frames,
    idle_and_half_open,
    memory_mib,
)
from tests.support.waiting import LIMIT_S, until, wait_until

_CODES = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.HEART_BEAT,
    RequestCode.UPDATE_BROKER_CONFIG,
)
"""Requests whose bodies are read."""


@contextlib.contextmanager
def started(folder: Path, **options: str) -> Iterator[Gateway]:
    with Gateway(folder, **OPTIONS, **options) as found:
        wait_until(lambda: "compiled code loaded" in found.log.read_text())  # which takes memory
        yield found
        assert found.terminate() == 0
    assert "Traceback" not in found.log.read_text()


@pytest.fixture
def gateway(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Gateway]:
    """With the options that a test gives by `indirect`."""
    with started(tmp_path, **getattr(request, "param", {})) as found:
        yield found


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One for all hostile frames and bodies, none of which it keeps."""
    with started(tmp_path_factory.mktemp("fed")) as found:
        yield found


class Witness:
    """An administrator and a gRPC client that must be served all the time."""

    def __init__(self, gateway: Gateway) -> None:
        self._address = f"127.0.0.1:{gateway.remoting_port}"
        self._client = RemotingClient()
        self._grpc = Client(gateway.address)
        self._sent = 0

    async def look(self) -> None:
        answer = await asyncio.to_thread(self._grpc.send, "witness", b"x")
        assert answer.status.code == pb.OK
        self._sent += 1
        command = Command(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "witness"})
        found = await self._client.invoke(self._address, command, LIMIT_S)
        assert found.code == ResponseCode.SUCCESS
        assert found.body.count(b'"maxOffset"') == 8

    async def close(self) -> None:
        self._grpc.channel.close()
        await self._client.close()


def test_hostile_frames_end_their_connection_only(fed: Gateway) -> None:
    async def test() -> None:
        witness = Witness(fed)
        for number, data in enumerate(hostile_frames()):
            with connect(fed.remoting_port - 2 * (number % 2)) as peer:
                peer.sendall(data)
            if number % 40 == 0:
                await witness.look()
        await witness.look()
        await witness.close()

    asyncio.run(test())


def test_broken_frames_close_at_once(fed: Gateway) -> None:
    for data in hostile_frames()[:7]:
        with connect(fed.remoting_port) as peer:
            peer.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""


@pytest.mark.parametrize("kind", BOMBS)
def test_hostile_bodies_are_answered_and_memory_is_bounded(
    fed: Gateway, kind: str, record_property: Record
) -> None:
    async def test() -> None:
        witness = Witness(fed)
        await witness.look()
        forget_peak(fed.process)
        before = memory_mib(fed.process)
        client, body = RemotingClient(), BOMBS[kind]
        for code in _CODES:
            command = Command(code, {}, body)
            answer = await client.invoke(f"127.0.0.1:{fed.remoting_port}", command, LIMIT_S)
            assert answer.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
            assert answer.remark is not None
            assert len(answer.remark) < 1000
            await witness.look()
        grown = memory_mib(fed.process, "VmHWM") - before
        record_property("grown_mib", grown)
        assert grown < 300
        await client.close()
        await witness.close()

    asyncio.run(test())


def test_idle_and_half_open_connections(gateway: Gateway, record_property: Record) -> None:
    """Many that say nothing or half a frame, on both ports; then 36 that announce 16 MiB and send all but a byte."""

    async def test() -> None:
        witness = Witness(gateway)
        await witness.look()
        ports = (gateway.remoting_port, gateway.remoting_port - 2)
        await idle_and_half_open(ports, gateway.process, witness.look, record_property, leaving=0, large=36)
        await witness.close()

    asyncio.run(test())


def test_heartbeats_of_many_connections_are_forgotten_with_them(gateway: Gateway) -> None:
    async def test() -> None:
        address = f"127.0.0.1:{gateway.remoting_port}"
        body = json.dumps(
            {"clientID": "c", "producerDataSet": [{"groupName": "p"}], "consumerDataSet": []}
        ).encode()
        peers = [connect(gateway.remoting_port) for _ in range(200)]
        for peer in peers:
            peer.sendall(encode(Command(RequestCode.HEART_BEAT, {}, body)))
            assert peer.recv(1)
        client = RemotingClient()
        listed = Command(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        assert (await client.invoke(address, listed, LIMIT_S)).body.count(b'"clientId":"c"') == 200
        for peer in peers:
            peer.close()

        async def forgotten() -> bool:
            return (await client.invoke(address, listed, LIMIT_S)).code == ResponseCode.SYSTEM_ERROR

        await until(forgotten)
        await client.close()

    asyncio.run(test())


def test_searches_by_key_are_few_at_a_time_and_hold_nobody_up(gateway: Gateway) -> None:
    """2,000 asked at once over a log of 10,000 messages: some are refused with SYSTEM_BUSY, gRPC goes on."""

    async def test() -> None:
        witness = Witness(gateway)
        client = Client(gateway.address)
        for _ in range(100):
            await asyncio.to_thread(client.send, "t", *[bytes(100)] * 100)
        fields = {
            "topic": "t",
            "key": "k",
            "maxNum": "32",
            "beginTimestamp": "0",
            "endTimestamp": str(1 << 62),
        }
        frame = encode(Command(RequestCode.QUERY_MESSAGE, fields))
        with connect(gateway.remoting_port) as peer:
            peer.sendall(frame * 2000)
            remoting = RemotingClient()
            address = f"127.0.0.1:{gateway.remoting_port}"
            await witness.look()
            answers = [await remoting.invoke(address, Command(RequestCode.QUERY_MESSAGE, fields), LIMIT_S)]
            while answers[-1].code == ResponseCode.SYSTEM_BUSY:
                await witness.look()
                answers.append(
                    await remoting.invoke(address, Command(RequestCode.QUERY_MESSAGE, fields), LIMIT_S)
                )
            assert answers[-1].code == ResponseCode.QUERY_NOT_FOUND
            received = b""
            while received.count(b"run already") < 1:
                received += peer.recv(1 << 16)
            await remoting.close()
        client.channel.close()
        await witness.close()

    asyncio.run(test())


REFUSED = rounds(3, 25)
"""Heartbeats beyond those that are kept."""
SUBSCRIPTIONS: dict[str, list[dict[str, str]]] = {
    "long": [{"topic": f"t{number}", "subString": "x" * 180} for number in range(4300)],
    "short": [{"topic": f"{number:x}"} for number in range(10_000)],
}


@pytest.mark.parametrize("kind", SUBSCRIPTIONS)
@pytest.mark.parametrize("gateway", [{"lakeMaxSharePerAddress": "100"}], indirect=True, ids=["one address"])
def test_what_heartbeats_hold_is_bounded(gateway: Gateway, kind: str, record_property: Record) -> None:
    """Connections with a large heartbeat each: 32 MiB of memory are kept, others are answered with SYSTEM_BUSY."""

    async def test() -> None:
        witness = Witness(gateway)
        await witness.look()
        consumer = {"groupName": "g", "subscriptionDataSet": SUBSCRIPTIONS[kind]}
        value = {"clientID": "c", "consumerDataSet": [consumer]}
        body = json.dumps(value, separators=(",", ":")).encode()
        address = f"127.0.0.1:{gateway.remoting_port}"
        warm = RemotingClient()
        assert (await warm.invoke(address, Command(RequestCode.HEART_BEAT, {}, body), LIMIT_S)).code == 0
        await warm.close()
        before = memory_mib(gateway.process)
        kept = MAX_HELD // decode_heartbeat(JsonObject(value, "x")).weight
        assert 15 < kept < 40
        clients, codes = [], []
        for _ in range(kept + REFUSED):
            clients.append(RemotingClient())
            command = Command(RequestCode.HEART_BEAT, {}, body)
            answer = await clients[-1].invoke(address, command, LIMIT_S)
            codes.append(answer.code)
        await witness.look()
        assert codes == [0] * kept + [ResponseCode.SYSTEM_BUSY] * REFUSED
        grown = memory_mib(gateway.process) - before
        record_property("grown_mib", grown)
        assert grown < 160
        listed = Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        found = await clients[0].invoke(address, listed, LIMIT_S)
        assert json.loads(found.body) == {"consumerIdList": ["c"] * kept}
        for client in clients:
            await client.close()
        await witness.close()

    asyncio.run(test())


def test_whole_tables_are_few_at_a_time_and_come_in_pages(gateway: Gateway, record_property: Record) -> None:
    """2,000 groups; 300 requests of everything on one connection, answers unread at first: some are refused with
    SYSTEM_BUSY, others are served, memory stays bounded."""

    async def test() -> None:
        witness = Witness(gateway)
        await witness.look()
        names = [f"group-{number:05d}" for number in range(2000)]
        put = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        frames = [encode(Command(put, {}, b'{"groupName":"%b"}' % name.encode())) for name in names]
        with connect(gateway.remoting_port) as peer:
            sending = asyncio.create_task(asyncio.to_thread(peer.sendall, b"".join(frames)))
            assert {each.code for each in await asyncio.to_thread(answers, peer, len(names))} == {0}
            await sending
        before = memory_mib(gateway.process)
        with connect(gateway.remoting_port) as peer:
            peer.sendall(encode(Command(RequestCode.GET_ALL_TOPIC_CONFIG)) * 300)
            for _ in range(20):
                await witness.look()
            codes = [each.code for each in await asyncio.to_thread(answers, peer, 300)]
        assert set(codes) == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
        grown = memory_mib(gateway.process, "VmHWM") - before
        record_property("grown_mib", grown)
        assert grown < 100
        client = RemotingClient()
        found: list[str] = []
        version, total = "", 2001
        while len(found) < total:
            fields = {"groupSeq": str(len(found)), "maxGroupNum": "450", "dataVersion": version}
            command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, fields)
            answer = await client.invoke(f"127.0.0.1:{gateway.remoting_port}", command, LIMIT_S)
            assert answer.code == 0, answer.remark
            total = int(answer.ext_fields["totalGroupNum"])
            table = json.loads(answer.body)
            version = json.dumps(table["dataVersion"])
            page = list(table["subscriptionGroupTable"])
            assert page == sorted(page)
            assert 0 < len(page) <= 450
            found += page
        assert found == sorted([*names, *SYSTEM_GROUPS])
        await client.close()
        await witness.close()

    asyncio.run(test())


def answers(peer: socket.socket, count: int) -> list[Command]:
    """The next answers on a connection, without their bodies."""
    decoder, found = Decoder(), []
    while len(found) < count:
        data = peer.recv(1 << 20)
        assert data, f"closed after {len(found)} of {count} answers"
        decoder.feed(data)
        while (command := decoder.next_command()) is not None:
            found.append(Command(command.code, command.ext_fields, remark=command.remark))
    return found
