"""A stranger on another machine and the routes of lakebrokers: a name server in this process's namespace, the stranger in one
of its own. Needs root and iproute2."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway, NameServer
from tests.support.machines.partition import Partition
from tests.support.waiting import LIMIT_S, in_time, wait_until


@pytest.fixture
def elsewhere() -> Iterator[Partition]:
    with Partition() as partition:
        yield partition


def route(gateway: Gateway, host: str) -> dict[str, int]:
    """Queues of `orders` by broker, as a client is told."""
    client = Client(f"{host}:{gateway.grpc_port}")
    request = rpc.QueryRouteRequest(topic=pb.Resource(name="orders"))
    answer = client.call("QueryRoute", request)
    client.channel.close()
    found: dict[str, int] = {}
    for queue in answer.message_queues:
        found[queue.broker.name] = found.get(queue.broker.name, 0) + 1
    return found


def test_a_stranger_gets_nothing_of_a_route_and_takes_nothing_away(
    tmp_path: Path, elsewhere: Partition
) -> None:
    host, guest = elsewhere.host, elsewhere.guest
    here = {"bindAddress": host, "grpcBindAddress": host, "brokerIP1": host, "pollNameServerInterval": "500"}
    with (
        socket.create_server((host, 0)) as canary,
        NameServer(tmp_path / "namesrv", bindAddress=host) as name_server,
        Gateway(
            tmp_path / "lake",
            brokerName="lake",
            namesrvAddr=f"{host}:{name_server.port}",
            listenPort="0",
            **here,
        ) as lake,
        Gateway(
            tmp_path / "far",
            wrapper=elsewhere.wrapper,
            brokerName="far",
            namesrvAddr=f"{host}:{name_server.port}",
            listenPort="0",
            **{**here, "bindAddress": guest, "grpcBindAddress": guest, "brokerIP1": guest},
        ) as far,
    ):
        canary.settimeout(0.0)
        for gateway, at in ((lake, host), (far, guest)):
            client = Client(f"{at}:{gateway.grpc_port}")
            # the name server has 3 s to say who else has the topic
            status = in_time(
                lambda client=client: client.send("orders", b"x").status,
                lambda status: status.code == pb.PROXY_TIMEOUT,
            )
            assert status.code == pb.OK
            client.channel.close()
        wait_until(lambda: route(lake, host) == {"lake": 8, "far": 8})
        arguments = (
            f"{host}:{name_server.port}",
            f"{host}:{lake.remoting_port}",
            f"{host}:{canary.getsockname()[1]}",
        )
        stranger = subprocess.Popen(
            [
                *elsewhere.wrapper,
                sys.executable,
                "-m",
                "tests.support.peers.stranger",
                *arguments,
                f"{guest}:1",
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert stranger.stdout is not None
            answers = json.loads(stranger.stdout.readline())
            assert answers["another's address"] == 0, "anybody may register a broker"
            refused = {what: code for what, code in answers.items() if what != "another's address"}
            assert all(refused.values()), refused
            wait_until(lambda: "left out of routes" in lake.log.read_text())
            assert route(lake, host) == {"lake": 8, "far": 8}
        finally:
            stranger.communicate("\n", timeout=LIMIT_S)
        with pytest.raises(BlockingIOError):
            canary.accept()
        assert route(lake, host) == {"lake": 8, "far": 8}, "nor by going away"
        far.kill()
        wait_until(lambda: route(lake, host) == {"lake": 8})
        far.start()
        wait_until(lambda: route(lake, host) == {"lake": 8, "far": 8})
        log = name_server.log.read_text()
        assert "a broker's request is refused" in log
        assert "list this host in the name server's lakeBrokerAddresses" in log
