"""A gateway with few file descriptors: idle connections do not take those of the store, nor everybody's places."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.support.peers.raw_http2 import PREFACE, SETTINGS, frame
from tests.support.waiting import LIMIT_S, wait_until

LIMIT = 1024
IDLE = 1100


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    limits = {resource.RLIMIT_NOFILE: (512, LIMIT)}
    options = {**OPTIONS, "mappedFileSizeCommitLog": str(1 << 20), "lakeAutoCreateTopics": "true"}
    with Gateway(tmp_path, limits=limits, **options) as started:
        yield started


def opened(address: str, number: int) -> list[socket.socket]:
    host, _, port = address.rpartition(":")
    found = []
    for count in range(number):
        peer = socket.create_connection((host, int(port)), LIMIT_S)
        if count % 2:
            with contextlib.suppress(OSError):  # closed for a later one
                peer.sendall(PREFACE + frame(SETTINGS, 0, 0))
        found.append(peer)
    return found


def descriptors(gateway: Gateway) -> int:
    assert gateway.process is not None
    return len(list(Path(f"/proc/{gateway.process.pid}/fd").iterdir()))


def test_idle_connections_leave_room_for_segments_and_for_others(gateway: Gateway) -> None:
    producer = Client(gateway.address)
    assert producer.send("t", b"first").status.code == pb.OK
    idle = opened(gateway.address, IDLE) + opened(f"127.0.0.1:{gateway.remoting_port}", 100)
    try:
        for _ in range(20):  # 10 segments
            assert producer.send("t", b"x" * (500 << 10)).status.code == pb.OK
        assert descriptors(gateway) < LIMIT - 64
        host, _, port = gateway.address.rpartition(":")
        for source in ("127.0.0.1", "127.0.0.2"):
            with socket.create_connection((host, int(port)), LIMIT_S, (source, 0)):
                pass
        newcomer = Client(gateway.address)
        assert newcomer.send("t", b"newcomer").status.code == pb.OK
        newcomer.channel.close()
    finally:
        for each in idle:
            each.close()
    wait_until(lambda: descriptors(gateway) <= 300)
    assert "Too many open files" not in gateway.log.read_text()


def test_connections_that_have_called_keep_their_places(tmp_path: Path) -> None:
    options = {**OPTIONS, "lakeMaxConnectionsPerAddress": "4", "lakeAutoCreateTopics": "true"}
    with Gateway(tmp_path, **options) as gateway:
        local = [("grpc.use_local_subchannel_pool", 1)]
        clients = []
        for _ in range(4):
            client = Client(gateway.address)
            client.channel.close()
            client.channel = grpc.insecure_channel(gateway.address, options=local)
            assert client.send("t", b"living").status.code == pb.OK
            clients.append(client)
        refused = Client(gateway.address)
        refused.channel = grpc.insecure_channel(gateway.address, options=local)
        with pytest.raises(grpc.RpcError) as failed:
            refused.send("t", b"one too many")
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE
        for each in clients:
            assert each.send("t", b"living").status.code == pb.OK
            each.channel.close()
        assert "lakeMaxConnectionsPerAddress" in gateway.log.read_text()
