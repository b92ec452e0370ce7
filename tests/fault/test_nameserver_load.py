"""The name server as a process among hostile and idle peers: others are served meanwhile, its memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_gateway.remoting.body.registration import RegisterBrokerBody
from broker_gateway.remoting.body.topic_config import DataVersion, TopicConfig
from broker_gateway.remoting.client import RemotingClient
from broker_gateway.remoting.codes import RequestCode, ResponseCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.frame import MAX_FRAME, encode
from demo.processes import NameServer

BODY = RegisterBrokerBody(DataVersion(0, 1, 1), {name: TopicConfig(name) for name in ("orders", "other")})
IDS = {
    "brokerName": "b",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "c",
    "brokerId": "0",
    "haServerAddr": "",
}
HOSTILE_IDS = {**IDS, "brokerName": "hostile", "brokerAddr": "127.0.0.1:9"}
IDLE = 2000
Record = Callable[[str, object], None]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NameServer]:
    with NameServer(tmp_path) as found:
        yield found
        assert found.terminate() == 0
    assert "Traceback" not in found.log.read_text()


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
        assert (await self._client.invoke(self._address, command, 20)).code == ResponseCode.SUCCESS

    async def close(self) -> None:
        await self._client.close()


def memory_mib(server: NameServer, what: str = "VmRSS") -> int:
    """Resident now (VmRSS), or the most there ever was (VmHWM)."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith(f"{what}:"))
    return int(line.split()[1]) >> 10


def connect(server: NameServer) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    found.settimeout(20)
    return found


def hostile_frames() -> list[bytes]:
    chance = random.Random(7)
    whole = encode(Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, BODY.encode(compress=True)))
    broken = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", MAX_FRAME),
        struct.pack(">II", 100, 0xFF000000),
        struct.pack(">II", 100, 101),
        struct.pack(">II", 12, 8) + b"[[[[[[[[",
    ]
    for _ in range(200):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        broken.append(bytes(changed))
    broken += [chance.randbytes(chance.randint(1, 400)) for _ in range(200)]
    return broken


@pytest.mark.timeout(120)
def test_hostile_frames_end_their_connection_only(server: NameServer) -> None:
    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        for number, data in enumerate(hostile_frames()):
            with connect(server) as peer:
                peer.sendall(data)
            if number % 20 == 0:
                await witness.look()
        await witness.look()
        await witness.close()

    asyncio.run(test())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("data", hostile_frames()[:7])
def test_a_broken_frame_closes_at_once(server: NameServer, data: bytes) -> None:
    with connect(server) as peer:
        peer.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


BOMBS = {
    "deep": b"[" * (8 << 20),
    "dense": b'{"filterServerList":[' + b"[]," * 1_400_000 + b"[]]}",
    "bare keys": b"{" + b",".join(b"a%d:1" % number for number in range(1_400_000)) + b"}",
    "no wrapper": b'{"filterServerList":[]}' + b" " * (1 << 20),
    "wide": b"[" + b"{}," * (4 << 20) + b"{}]",
    "quotes": b"{0:" + b'"' + b'\\"' * (4 << 20),
    "bomb": zlib.compress(bytes(1 << 30), 9),
    "texts": b'{"filterServerList":[' + b'"' + b"x" * (15 << 20) + b'"]}',
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", BOMBS)
def test_hostile_bodies_are_answered_and_memory_is_bounded(
    server: NameServer, kind: str, record_property: Record
) -> None:
    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        before = memory_mib(server)
        client = RemotingClient()
        command = Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, BOMBS[kind])
        for _ in range(5):
            answer = await client.invoke(server.address, command, 60)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            await witness.look()
        grown = memory_mib(server, "VmHWM") - before
        record_property("grown_mib", grown)
        assert grown < 250
        await client.close()
        await witness.close()

    asyncio.run(test())


@pytest.mark.timeout(240)
def test_registrations_sent_without_waiting_are_taken_one_by_one(
    server: NameServer, record_property: Record
) -> None:
    """30 of 15 MiB on one connection, each slow to read: no more are read than are served."""

    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        before = memory_mib(server)
        body = BOMBS["dense"] + b" " * ((15 << 20) - len(BOMBS["dense"]))
        frame = encode(Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, body))
        sent = 0
        with connect(server) as peer:
            peer.setblocking(False)
            deadline = asyncio.get_running_loop().time() + 6
            while sent < 30 * len(frame) and asyncio.get_running_loop().time() < deadline:
                with contextlib.suppress(BlockingIOError):
                    sent += peer.send(frame[sent % len(frame) :])
                await asyncio.sleep(0)
            await witness.look()
        grown = memory_mib(server, "VmHWM") - before
        record_property("grown_mib", grown)
        assert sent > len(frame)
        assert grown < 300
        await witness.look()
        await witness.close()

    asyncio.run(test())


@pytest.mark.timeout(180)
def test_others_are_served_while_a_large_registration_is_read(
    server: NameServer, record_property: Record
) -> None:
    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        before = memory_mib(server)
        topics = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(200_000)}
        body = RegisterBrokerBody(DataVersion(0, 1, 1), topics).encode(compress=True)
        client = RemotingClient()
        registering = asyncio.create_task(
            client.invoke(server.address, Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, body), 100)
        )
        looks = 0
        while not registering.done():
            await witness.look()
            looks += 1
        assert (await registering).code == 0
        record_property("answers_meanwhile", looks)
        record_property("grown_mib", memory_mib(server, "VmHWM") - before)
        assert looks >= 5
        await client.close()
        await witness.close()

    asyncio.run(test())


@pytest.mark.timeout(180)
def test_idle_and_half_open_connections(server: NameServer, record_property: Record) -> None:
    """2,000 that say nothing, each second of them within a frame; then 60 that announce 16 MiB and send all but a byte."""

    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        before = memory_mib(server)
        peers = [connect(server) for _ in range(IDLE)]
        for peer in peers[::2]:
            peer.sendall(struct.pack(">II", 1000, 900) + b"{")
        await witness.look()
        idle = memory_mib(server) - before
        record_property("grown_by_idle_mib", idle)
        assert idle < 100
        for peer in peers[:60]:
            peer.close()
        most = 0
        large = []
        announced = struct.pack(">II", MAX_FRAME - 4, 2) + b"{}"
        for _ in range(60):
            peer = connect(server)
            large.append(peer)
            with contextlib.suppress(ConnectionError):  # closed for holding too much
                peer.sendall(announced + bytes(MAX_FRAME - len(announced) - 1))
            await witness.look()
            most = max(most, memory_mib(server))
        record_property("grown_by_half_open_mib", most - before)
        assert most < before + 500, "960 MiB were sent, 256 may be held"
        for peer in (*peers, *large):
            peer.close()
        await witness.look()
        await witness.close()

    asyncio.run(test())


@pytest.mark.timeout(180)
def test_a_client_that_never_reads(server: NameServer, record_property: Record) -> None:
    """It asks for a large list again and again: the answers it does not read stay few."""

    async def test() -> None:
        client = RemotingClient()
        topics = {
            f"topic-{number:06}-{'x' * 60}": TopicConfig(f"topic-{number:06}-{'x' * 60}")
            for number in range(20_000)
        }
        body = RegisterBrokerBody(DataVersion(0, 1, 1), topics).encode(compress=True)
        answer = await client.invoke(server.address, Command(RequestCode.REGISTER_BROKER, IDS, body), 60)
        assert answer.code == 0
        before = memory_mib(server)
        request = encode(Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        with connect(server) as peer:
            peer.setblocking(False)
            sent = 0
            for _ in range(200):
                try:
                    sent += peer.send(request * 50)
                except BlockingIOError:
                    break
                command = Command(RequestCode.GET_BROKER_CLUSTER_INFO)
                assert (await client.invoke(server.address, command, 30)).code == 0
            assert sent > 0
            grown = memory_mib(server) - before
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


@pytest.mark.timeout(240)
def test_lists_asked_for_without_waiting_do_not_stop_the_server(
    server: NameServer, record_property: Record
) -> None:
    """512 of each at once, of 90,000 topics, take no longer than a few that are worked out."""

    async def test() -> None:
        witness = Witness(server)
        await witness.start()
        client = RemotingClient()
        loop = asyncio.get_running_loop()

        topics = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(90_000)}
        body = RegisterBrokerBody(DataVersion(0, 1, 1), topics).encode(compress=True)
        command = Command(RequestCode.REGISTER_BROKER, HOSTILE_IDS, body)
        assert (await client.invoke(server.address, command, 60)).code == 0
        began = loop.time()
        listed = Command(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert (await client.invoke(server.address, listed, 60)).code == 0
        one = loop.time() - began  # it looks at every topic
        for name, (code, fields) in LISTS.items():
            began = loop.time()
            asked = [client.invoke(server.address, Command(code, fields), 60) for _ in range(512)]
            answers, _ = await asyncio.gather(asyncio.gather(*asked), witness.look())
            spent = loop.time() - began
            assert {each.code for each in answers} == {ResponseCode.SUCCESS}
            record_property(f"{name}: 512 for as long as one", round(spent / one, 1))
            assert spent < 50 * one
        await client.close()
        await witness.close()

    asyncio.run(test())
