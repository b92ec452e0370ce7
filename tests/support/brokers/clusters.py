"""Several brokers that know of each other: under one supervisor, or three behind one name server; the routes that they give."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from broker_gateway.messaging.ordered_sends import bucket
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway, NameServer
from lakebroker_testing.ports import free_ports
from lakebroker_testing.prestarted import start
from tests.support.brokers.gateways import gateway_words
from tests.support.waiting import wait_until

NAMES = ("a", "b", "c")
QUEUES = 2
"""Of a topic, at each of them."""
QUICK = {"pollNameServerInterval": "200"}
"""Of brokers whose looks at the cluster a test waits for."""
_SHORT_POLLS = {"grpcClientConsumerMinLongPollingTimeoutMillis": "100"}


def three_brokers(folder: Path, stack: ExitStack) -> dict[str, Gateway]:
    """By name; they end with `stack`."""
    name_server = stack.enter_context(NameServer(folder / "namesrv"))
    return {
        name: stack.enter_context(
            Gateway(
                folder / name,
                namesrvAddr=name_server.address,
                brokerName=name,
                **QUICK,
                **_SHORT_POLLS,
            )
        )
        for name in NAMES
    }


def wait_until_known(brokers: dict[str, Gateway], topic: str) -> None:
    """Each knows that all have the topic."""
    for each in brokers.values():
        wait_until(lambda each=each: len(routes(each.grpc_port, topic)) == len(NAMES))


def place(name: str) -> tuple[str, int]:
    """Broker and queue of a message group or lite topic."""
    number = bucket(name, len(NAMES) * QUEUES)
    return NAMES[number // QUEUES], number % QUEUES


class Host:
    """Two brokers under a supervisor, with a name server in the first where that is asked for."""

    def __init__(self, folder: Path, *, with_name_server: bool = False) -> None:
        self.ports = folder / "ports.json"
        self.log = folder / "log"
        self.stores = folder / "stores"
        self.name_server_port = 0
        words, options = (
            ["--processes", "2"],
            {"storePathRootDir": str(self.stores), "grpcShutdownTimeSeconds": "60", **_SHORT_POLLS},
        )
        if with_name_server:
            (self.name_server_port,) = free_ports(1)
            options["lakeNamesrvListenPort"] = str(self.name_server_port)
            words.append("--with-namesrv")
        given = gateway_words(folder, *words, lakeAutoCreateTopics="true", **options)
        with self.log.open("wb") as log:
            self.process = start(*given, stdout=log, stderr=log, start_new_session=True)
        wait_until(self.ports.exists, self.log.read_text)

    def brokers(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.ports.read_text())["processes"]
        return found


def routes(port: int, topic: str) -> dict[str, tuple[int, int]]:
    """Broker name to (port, queues), of a route."""
    client = Client(f"127.0.0.1:{port}")
    answer = client.call("QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=topic)))
    client.channel.close()
    found: dict[str, tuple[int, int]] = {}
    for queue in answer.message_queues:
        name = queue.broker.name
        found[name] = (queue.broker.endpoints.addresses[0].port, found.get(name, (0, 0))[1] + 1)
    return found
