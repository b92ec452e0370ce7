"""The demo's traffic: orders, payments and shipments by the official client, and what it counted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from lakebroker_testing.official_client import OfficialClient

ROUNDS = 12
LEAST_ROUNDS = 6
"""With fewer, not every poisoned order is sent."""
ORDERS_A_ROUND = 25
POISON = ("order-7", "order-42", "order-130")
"""Orders that the audit service never manages: dead letters after their last attempt."""
FLAKY = {"order-3": 1, "order-60": 1}
"""Orders that billing fails once each."""
TAGS = ("new", "express", "gift")
AUDIT_RETRIES = 1


@dataclass(slots=True)
class Counted:
    """What the client saw of so many rounds; SQL has to say the same."""

    rounds: int = ROUNDS
    sent: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    billed: int = 0
    billed_again: int = 0
    audited: int = 0
    dead: set[str] = field(default_factory=set)


def produce(endpoints: str, counted: Counted, step: Callable[[int], None]) -> None:
    """Sends orders with tags and keys, payments and shipments; `step` is told how many."""
    with OfficialClient() as client:
        client.call("producer", endpoints=endpoints, topics=["orders", "payments", "shipments"])
        number = 0
        for _ in range(counted.rounds):
            for tag in TAGS:
                count = ORDERS_A_ROUND // len(TAGS)
                keys = [f"order-{number + n}" for n in range(count)]
                bodies = [f'{{"order": "{key}", "kind": "{tag}"}}' for key in keys]
                answer = client.call(
                    "send", topic="orders", bodies=bodies, tag=tag, keys=keys, properties={"shop": "north"}
                )
                counted.ids.update(zip(keys, answer["ids"], strict=True))
                _sent(counted, "orders", count, step)
                number += count
            for topic in ("payments", "shipments"):
                client.call("send", topic=topic, bodies=[f"{topic} {number} {n}" for n in range(4)])
                _sent(counted, topic, 4, step)
            time.sleep(0.2)


def bill(endpoints: str, counted: Counted, total: int) -> None:
    """A push consumer that fails two orders once; ends when all were consumed. Raises TimeoutError."""
    with OfficialClient() as client:
        client.call("push", endpoints=endpoints, group="billing", topics={"orders": "*"}, fail=dict(FLAKY))
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            seen = client.call("consumed")["messages"]
            done = {message["id"] for message in seen if not message["failed"]}
            if len(done) == total:
                counted.billed = len(done)
                counted.billed_again = sum(message["attempt"] > 1 for message in seen)
                return
            time.sleep(0.3)
    raise TimeoutError(f"billing consumed {len(done)} of {total} orders in 90 s")


def audit(endpoints: str, counted: Counted, total: int) -> None:
    """A simple consumer that gives poisoned orders back until they are dead letters. Raises TimeoutError."""
    with OfficialClient() as client:
        client.call("simple", endpoints=endpoints, group="audit", topics={"orders": "*"}, await_s=3)
        acked: set[str] = set()
        attempts = dict.fromkeys(POISON, 0)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            messages = client.call("receive", max=32, invisible_s=20)["messages"]
            for message in messages:
                key = message["keys"][0]
                if key in attempts:
                    attempts[key] = message["attempt"]
                    client.call("invisible", id=message["id"], seconds=1)
            good = [message["id"] for message in messages if message["keys"][0] not in attempts]
            errors = client.call("ack", ids=good)["errors"]
            acked.update(message_id for message_id in good if message_id not in errors)
            if len(acked) == total - len(POISON) and min(attempts.values()) > AUDIT_RETRIES:
                counted.audited = len(acked)
                counted.dead = set(POISON)
                return
    raise TimeoutError(f"audit settled {len(acked)} orders in 90 s, attempts {attempts}")


def go_on(endpoints: str, ended: threading.Event) -> None:
    """Sends an order each second, which billing settles and audit does not, until `ended`."""
    with OfficialClient() as client:
        client.call("producer", endpoints=endpoints, topics=["orders"])
        client.call("push", endpoints=endpoints, group="billing", topics={"orders": "*"})
        number = 0
        while not ended.wait(1):
            number += 1
            key = f"order-later-{number}"
            client.call("send", topic="orders", bodies=[f'{{"order": "{key}"}}'], tag="new", keys=[key])


def planned_orders(rounds: int) -> int:
    """How many orders `produce` sends."""
    return rounds * (ORDERS_A_ROUND // len(TAGS)) * len(TAGS)


def planned_messages(rounds: int) -> int:
    """How many messages `produce` sends to all topics."""
    return planned_orders(rounds) + rounds * 8


def _sent(counted: Counted, topic: str, count: int, step: Callable[[int], None]) -> None:
    counted.sent[topic] = counted.sent.get(topic, 0) + count
    step(count)
