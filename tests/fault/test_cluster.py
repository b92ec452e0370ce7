"""Two gateways and our name server: traffic across them with the official client, while one is killed and returns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lakebroker_testing.gateway import Gateway, NameServer
from lakebroker_testing.official_client import OfficialClient, OfficialClientError
from tests.suite.evidence import EVIDENCE
from tests.support.brokers.clusters import QUICK, routes
from tests.support.brokers.gateways import create
from tests.support.waiting import wait_until

NAMES = ("broker-0", "broker-1")
SENT = 30


@pytest.fixture
def gateways(tmp_path: Path) -> Iterator[list[Gateway]]:
    with contextlib.ExitStack() as started:
        name_server = started.enter_context(NameServer(tmp_path / "namesrv"))
        yield [
            started.enter_context(
                Gateway(
                    tmp_path / name,
                    brokerName=name,
                    namesrvAddr=name_server.address,
                    listenPort="0",
                    **QUICK,
                )
            )
            for name in NAMES
        ]


def test_one_of_two_is_killed_and_returns(gateways: list[Gateway]) -> None:
    """In the long form a consumer is there all the time: it sees who returns when it asks for its route, every 30 s."""
    first, second = gateways
    create(first, "alone", 3)
    for each in gateways:
        create(each, "shared", 2)

    def shared(*among: Gateway) -> dict[str, tuple[int, int]]:
        return {
            name: (each.grpc_port, 2) for name, each in zip(NAMES, gateways, strict=True) if each in among
        }

    for each in gateways:
        wait_until(partial(is_route, each, "shared", shared(first, second)))
    # a topic that only one has is found through the other, and not made there
    wait_until(partial(is_route, second, "alone", {"broker-0": (first.grpc_port, 3)}))

    with OfficialClient() as producer, OfficialClient() as consumer:

        def consume() -> None:
            consumer.call(
                "push", endpoints=first.address, group="g", topics={"shared": "*"}, fail={}, threads=2
            )

        def consumed() -> set[str]:
            return {each["body"] for each in consumer.call("consumed")["messages"]}

        producer.call("producer", endpoints=first.address, topics=["shared"])
        sent = [f"before {number}" for number in range(SENT)]
        producer.call("send", topic="shared", bodies=sent)
        second.kill()
        wait_until(partial(is_route, first, "shared", shared(first)))
        during: list[str] = []

        def sends(body: str) -> bool:
            try:
                producer.call("send", topic="shared", bodies=[body])
            except OfficialClientError:  # the client's own route names the dead one until it asks again
                return False
            during.append(body)
            return True

        for number in range(SENT):
            wait_until(partial(sends, f"during {number}"))
        if EVIDENCE:
            consume()
            wait_until(lambda: set(during) <= consumed())
            missing = {*sent, *during} - consumed()
            assert missing, "the killed broker had nothing"
            assert missing < set(sent), "only what was sent before is where it was sent"

        second.start()
        wait_until(partial(is_route, first, "shared", shared(first, second)))
        if not EVIDENCE:
            consume()
        wait_until(lambda: consumed() >= {*sent, *during})
    for each in gateways:
        assert each.terminate() == 0


def is_route(gateway: Gateway, topic: str, expected: dict[str, tuple[int, int]]) -> bool:
    return routes(gateway.grpc_port, topic) == expected
