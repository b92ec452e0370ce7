"""The official Python client, in its own process and virtual environment, against a gateway process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lakebroker_testing.gateway import Gateway
from lakebroker_testing.official_client import OfficialClient, OfficialClientError
from lakebroker_testing.prestarted import run
from tests.support.waiting import wait_until


@pytest.fixture
def official() -> Iterator[OfficialClient]:
    with OfficialClient() as client:
        yield client


def received(official: OfficialClient, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def come() -> bool:
        try:
            found.extend(official.call("receive", max=32, invisible_s=300)["messages"])
        except OfficialClientError as error:
            if "route" not in str(error):  # a dead-letter topic has none before its first message
                raise
        return len(found) >= count

    wait_until(come)
    return found


def test_send_and_simple_consumer(gateway: Gateway, official: OfficialClient, name: str) -> None:
    official.call("producer", endpoints=gateway.address, topics=[name])
    bodies = [f"body {n}" for n in range(50)]
    ids = official.call(
        "send", topic=name, bodies=bodies, tag="a", keys=[f"k{n}" for n in range(50)], properties={"p": "q"}
    )["ids"]
    official.call("simple", endpoints=gateway.address, group=name, topics={name: "a || b"}, await_s=3)
    messages = received(official, 50)
    assert sorted(m["id"] for m in messages) == sorted(ids)
    assert {m["body"] for m in messages} == set(bodies)
    assert not any(m["corrupted"] for m in messages)
    assert {m["tag"] for m in messages} == {"a"}
    assert all(m["properties"]["p"] == "q" and m["attempt"] == 1 for m in messages)
    official.call("invisible", id=ids[0], seconds=600)
    assert official.call("ack", ids=ids)["errors"] == {}
    assert official.call("ack", ids=ids[1:2])["errors"], "an acknowledged handle is void"


def test_push_consumer_retries_then_dead_letters(
    gateway: Gateway, official: OfficialClient, name: str
) -> None:
    run("group", "create", name, "--retry-max", "1", "--gateway", gateway.address, check=True)
    official.call("producer", endpoints=gateway.address, topics=[name])
    official.call("send", topic=name, bodies=["good", "flaky", "poison"], keys=["good", "flaky", "poison"])
    official.call(
        "push", endpoints=gateway.address, group=name, topics={name: "*"}, fail={"flaky": 1, "poison": 99}
    )

    def consumed() -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = official.call("consumed")["messages"]
        return messages if len(messages) >= 5 else []

    seen = wait_until(consumed)
    attempts = {key: [m["attempt"] for m in seen if m["body"] == key] for key in ("good", "flaky", "poison")}
    assert attempts == {"good": [1], "flaky": [1, 2], "poison": [1, 2]}
    official.call(
        "simple", endpoints=gateway.address, group=f"{name}-dlq", topics={f"%DLQ%{name}": "*"}, await_s=3
    )
    (dead,) = received(official, 1)
    assert dead["body"] == "poison"
