"""The name server as a process among hostile and idle peers: others are served meanwhile, its memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.frame import encode
from broker_gateway.transport.remoting.client import RemotingClient
from lakebroker_testing.gateway import NameServer
from tests.support.peers.hostile_remoting import (
    BODY,
    BOMBS,
    HOSTILE_IDS,
    IDS,
    Record,
    connect,
    forget_peak,
    hostile_frames,
    idle_and_half_open,
    memory_mib,
)
from tests.support.waiting import LIMIT_S


@contextlib.contextmanager
def started(folder: Path) -> Iterator[NameServer]:
    with NameServer(folder) as found:
        yield found
        assert found.terminate() == 0
    assert "Traceback" not in found.log.read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NameServer]:
    with started(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    """One for all hostile frames and bodies, none of which it keeps."""
    with started(tmp_path_factory.mktemp("fed")) as found:
        yield found


class Witness:
    """A broker and a client that must be served all the time."""

    def __init__(self, server: NameServer) -> None:
        self._address = server.address
        self._client = RemotingClient()

    async def start(self) -> None:
        answer = await self._client.invoke(
            self._address, Command(RequestCode.REGISTER_BROKER, IDS, BODY.encode(compress=True)), 20
        )
        assert answer.code == 0

    async def look(self) -> None:
        command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert (await self._client.invoke(self._address, command, LIMIT_S)).code == ResponseCode.SUCCESS

    async def close(self) -> None:
        await self._client.close()


def test_hostile_frames_end_their_connection_only(fed: NameServer) -> None:
    async def test() -> None:
        witness = Witness(fed)
        await witness.start()
        for number, data in enumerate(hostile_frames()):
            with connect(fed.port) as peer:
                peer.sendall(data)
            if number % 20 == 0:
                await witness.look()
        await witness.look()
        await witness.close()

    asyncio.run(test())


@pytest.mark.parametrize("data", hostile_frames()[:7])
def test_a_broken_frame_closes_at_once(fed: NameServer, data: bytes) -> None:
    with connect(fed.port) as peer:
        peer.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


@pytest.mark.parametrize("kind", BOMBS)
def test_hostile_bodies_are_answered_and_memory_is_bounded(
    fed: NameServer, kind: str, record_property: Record
) -> None:
    async def test() -> None:
        witness = Witness(fed)
        await witness.start()
        forget_peak(fed.process)
        before = memory_mib(fed.process)
        client = RemotingClient()
        command = Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, BOMBS[kind])
        for _ in range(2):
            answer = await client.invoke(fed.address, command, LIMIT_S)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            await witness.look()
        grown = memory_mib(fed.process, "VmHWM") - before
        record_property("grown_mib", grown)
        assert grown < 250
        await client.close()
        await witness.close()

    asyncio.run(test())


def test_registrations_sent_without_waiting_are_taken_one_by_one(
    server: NameServer, record_property: Record
) -> None:
    """30 of 15 MiB on one connection, each slow to read: no more are read than are served."""

    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        before = memory_mib(server.process)
        body = BOMBS["dense"] + b" " * ((15 << 20) - len(BOMBS["dense"]))
        frame = encode(Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, body))
        sent = looks = 0
        with connect(server.port) as peer:
            peer.setblocking(False)
            while sent < 30 * len(frame) and (sent < 2 * len(frame) or looks < 20):
                try:
                    sent += peer.send(frame[sent % len(frame) :])
                except BlockingIOError:
                    await witness.look()
                    looks += sent >= 2 * len(frame)
        grown = memory_mib(server.process, "VmHWM") - before
        record_property("grown_mib", grown)
        assert grown < 300
        await witness.look()
        await witness.close()

    asyncio.run(test())


def test_others_are_served_while_a_large_registration_is_read(
    server: NameServer, record_property: Record
) -> None:
    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        before = memory_mib(server.process)
        topics = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(80_000)}
        client, looks, deadline = RemotingClient(), 0, time.monotonic() + LIMIT_S
        for counter in itertools.count(1):  # until this process had its share of the processor meanwhile
            body = RegisterBrokerBody(DataVersion(0, 1, counter), topics).encode(compress=True)
            command = Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, body)
            registering = asyncio.create_task(client.invoke(server.address, command, LIMIT_S))
            looks = 0
            while not registering.done():
                await witness.look()
                looks += 1
            assert (await registering).code == 0
            if looks >= 5 or time.monotonic() > deadline:
                break
        record_property("answers_meanwhile", looks)
        record_property("grown_mib", memory_mib(server.process, "VmHWM") - before)
        assert looks >= 5
        await client.close()
        await witness.close()

    asyncio.run(test())


def test_idle_and_half_open_connections(server: NameServer, record_property: Record) -> None:
    """Many that say nothing, each second of them within a frame; then 36 that announce 16 MiB and send all but a byte."""

    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        ports = (server.port,)
        await idle_and_half_open(ports, server.process, witness.look, record_property, leaving=60, large=36)
        await witness.close()

    asyncio.run(test())


def test_a_client_that_never_reads(server: NameServer, record_property: Record) -> None:
    """It asks for a large list again and again: the answers it does not read stay few."""

    async def test() -> None:
        client = RemotingClient()
        topics = {
            f"topic-{number:06}-{'x' * 60}": TopicConfig(f"topic-{number:06}-{'x' * 60}")
            for number in range(20_000)
        }
        body = RegisterBrokerBody(DataVersion(0, 1, 1), topics).encode(compress=True)
        answer = await client.invoke(server.address, Command(RequestCode.REGISTER_BROKER, IDS, body), LIMIT_S)
        assert answer.code == 0
        before = memory_mib(server.process)
        request = encode(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        with connect(server.port) as peer:
            peer.setblocking(False)
            sent = 0
            for _ in range(200):
                try:
                    sent += peer.send(request * 50)
                except BlockingIOError:
                    break
                command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert (await client.invoke(server.address, command, LIMIT_S)).code == 0
            assert sent > 0
            grown = memory_mib(server.process) - before
            record_property("grown_mib", grown)
            assert grown < 100
        await client.close()

    asyncio.run(test())


LISTS = {
    "unit": (RequestCode.GET_UNIT_TOPIC_LIST, {}),
    "unit sub": (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}),
    "unit sub un-unit": (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}),
    "unknown cluster": (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "unknown"}),
}


def test_lists_asked_for_without_waiting_do_not_stop_the_server(server: NameServer) -> None:
    """128 of each at once, of 20,000 topics; others are served meanwhile."""

    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        client = RemotingClient()
        topics = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(20_000)}
        body = RegisterBrokerBody(DataVersion(0, 1, 1), topics).encode(compress=True)
        command = Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, body)
        assert (await client.invoke(server.address, command, LIMIT_S)).code == 0
        for code, fields in LISTS.values():
            asked = [client.invoke(server.address, Command(code, fields), LIMIT_S) for _ in range(128)]
            answers, _ = await asyncio.gather(asyncio.gather(*asked), witness.look())
            assert {each.code for each in answers} == {ResponseCode.SUCCESS}
        await client.close()
        await witness.close()

    asyncio.run(test())
