"""FIFO messages: the queue of a message group is the real proxy's, and an official consumer gets the same order of both."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

from broker_gateway.messaging.ordered_sends import bucket
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.official_client import OfficialClient, when_started
from lakebroker_testing.real_rocketmq import RocketMQ
from tests.suite.evidence import EVIDENCE
from tests.support.rocketmq.requests import create
from tests.support.waiting import wait_until

CASES = 20_000 if EVIDENCE else 4_000


def test_every_message_group_has_the_queue_that_it_has_there(tmp_path: Path, rocketmq: RocketMQ) -> None:
    known = random.Random(1)
    letters = "abcXYZ019-_ äöß中文𝄞€"
    cases = [
        ("".join(known.choices(letters, k=known.randint(1, 15))), known.choice((1, 2, 3, 8, 12, 24, 1000)))
        for _ in range(CASES)
    ]
    file = tmp_path / "cases"
    file.write_text(
        "\n".join(f"{base64.b64encode(group.encode()).decode()} {queues}" for group, queues in cases)
    )
    answers = rocketmq.java(Path(__file__).with_name("MessageGroups.java"), str(file)).splitlines()
    assert [bucket(group, queues) for group, queues in cases] == list(map(int, answers))


def consumed(address: str) -> dict[str, list[str]]:
    """What an official push consumer that fails one message twice gets of each message group, in its order."""
    groups = [f"group-{number}" for number in range(6)]
    with OfficialClient() as official:
        when_started(official, "producer", endpoints=address, topics=["ordered"])
        for number in range(5):
            for group in groups:
                when_started(
                    official,
                    "send",
                    topic="ordered",
                    bodies=[f"{group}:{number}"],
                    keys=[f"{group}-{number}"],
                    message_group=group,
                )
        when_started(
            official,
            "push",
            endpoints=address,
            group="in-order",
            topics={"ordered": "*"},
            fail={"group-2-1": 2},
        )
        found: list[dict[str, Any]] = []

        def all_consumed() -> bool:
            found[:] = official.call("consumed")["messages"]
            return len({each["id"] for each in found if not each["failed"]}) == 30

        wait_until(all_consumed, lambda: f"30 messages of {found}")
    return {group: [each["body"] for each in found if each["body"].startswith(group)] for group in groups}


def test_an_official_consumer_gets_the_order_that_it_gets_of_the_real_proxy(
    tmp_path: Path, rocketmq: RocketMQ
) -> None:
    made = {"ordered": (4, "FIFO")}, {"in-order": {"consumeMessageOrderly": True, "retryMaxTimes": 5}}
    create(rocketmq.broker_address, *made)
    theirs = consumed(rocketmq.address)
    with Gateway(tmp_path / "gateway") as gateway:
        create(f"127.0.0.1:{gateway.remoting_port}", *made)
        ours = consumed(gateway.address)
    assert {group: list(dict.fromkeys(bodies)) for group, bodies in ours.items()} == {
        f"group-{group}": [f"group-{group}:{number}" for number in range(5)] for group in range(6)
    }
    assert ours == theirs
