"""Three gateways and our name server: traffic across them with the official client, while one is killed and returns."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import ROOT, Gateway, NameServer, command
from lakebroker_testing.official_client import OfficialClient, OfficialClientError

pytestmark = pytest.mark.timeout(400)
SERVICE = rpc.DESCRIPTOR.services_by_name["MessagingService"].full_name
NAMES = ("broker-0", "broker-1", "broker-2")


def wait_for(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def routes(gateway: Gateway, topic: str) -> dict[str, tuple[int, int]]:
    """Broker name to (port, queues), as a gateway answers."""
    request = rpc.QueryRouteRequest(topic=pb.Resource(name=topic))
    found: dict[str, tuple[int, int]] = {}
    with grpc.insecure_channel(gateway.address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/QueryRoute",
            request_serializer=rpc.QueryRouteRequest.SerializeToString,
            response_deserializer=rpc.QueryRouteResponse.FromString,
        )
        answer = call(request, timeout=10, metadata=(("x-mq-client-id", "test"),))
    for queue in answer.message_queues:
        name = queue.broker.name
        found[name] = (queue.broker.endpoints.addresses[0].port, found.get(name, (0, 0))[1] + 1)
    return found


def create(gateway: Gateway, topic: str, queues: int) -> None:
    subprocess.run(
        command("topic", "create", topic, "--queues", str(queues), "--gateway", gateway.address),
        cwd=ROOT,
        capture_output=True,
        check=True,
    )


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[Gateway]]:
    with contextlib.ExitStack() as started:
        name_server = started.enter_context(NameServer(tmp_path / "namesrv"))
        yield [
            started.enter_context(
                Gateway(
                    tmp_path / name,
                    patient=True,
                    brokerName=name,
                    namesrvAddr=name_server.address,
                    listenPort="0",
                )
            )
            for name in NAMES
        ]


def test_one_of_three_is_killed_and_returns(gateways: list[Gateway]) -> None:
    first, second, third = gateways
    create(first, "alone", 3)
    for each in gateways:
        create(each, "shared", 2)
    expected = {name: (each.grpc_port, 2) for name, each in zip(NAMES, gateways, strict=True)}
    for each in gateways:
        wait_for(lambda each=each: routes(each, "shared") == expected)  # type: ignore[misc]
    # a topic that only one has is found through the others, and not made there
    wait_for(lambda: routes(third, "alone") == {"broker-0": (first.grpc_port, 3)})
    wait_for(lambda: routes(second, "alone") == {"broker-0": (first.grpc_port, 3)})

    with OfficialClient() as producer, OfficialClient() as consumer:
        producer.call("producer", endpoints=first.address, topics=["shared"])
        sent = [f"before {number}" for number in range(60)]
        producer.call("send", topic="shared", bodies=sent)

        second.kill()
        alive = {name: expected[name] for name in ("broker-0", "broker-2")}
        for each in (first, third):
            wait_for(lambda each=each: routes(each, "shared") == alive)  # type: ignore[misc]
        in_a_row, failed, number = 0, 0, 0
        deadline = time.monotonic() + 90  # the client's own route is refreshed every 30 s
        while in_a_row < 30:
            assert time.monotonic() < deadline
            number += 1
            try:
                producer.call("send", topic="shared", bodies=[f"during {number}"])
            except OfficialClientError:
                in_a_row, failed = 0, failed + 1
            else:
                in_a_row += 1
                sent.append(f"during {number}")

        consumer.call("push", endpoints=third.address, group="g", topics={"shared": "*"}, fail={}, threads=2)

        def consumed() -> set[str]:
            return {each["body"] for each in consumer.call("consumed")["messages"]}

        here = {body for body in sent if body.startswith("during")}
        wait_for(lambda: here <= consumed())
        missing = set(sent) - consumed()
        assert missing, "the killed broker had nothing"
        assert missing < set(sent[:60]), "only what was sent before is where it was sent"

        second.start()
        expected["broker-1"] = (second.grpc_port, 2)
        wait_for(lambda: routes(third, "shared") == expected)
        wait_for(lambda: consumed() >= set(sent), limit_s=120)
    for each in gateways:
        assert each.terminate() == 0
