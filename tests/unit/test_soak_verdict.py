"""What the soak test calls a difference: each damage to a lake that equals its ledger is found, and told as a life."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.messages import message as made
from tests.support.soak.traffic import KINDS, PLANS, End, Kind, Ledger, Message
from tests.support.soak.verdict import View, differences, outstanding, told

WHEN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
NORMAL, FIFO, DELAY, TRANSACTION = KINDS


def sent(ledger: Ledger, kind: Kind, number: int = 0, due_ms: int = 0) -> Message:
    """A message whose send was answered."""
    group = "group" if kind.fifo else ""
    message = Message(f"{kind.name}-{number}", kind, number, b"body", "red", group, due_ms, PLANS[0])
    ledger.sending(message)
    ledger.kept(message)
    return message


def row(message: Message, offset: int, topic: str = "", **more: Any) -> dict[str, Any]:
    """Its row in the first queue of its topic, or of another."""
    return {
        "physical_offset": 1000 + offset,
        "topic": topic or message.kind.topic,
        "queue_id": 0,
        "queue_offset": offset,
        "message_id": message.id,
        "body": message.body,
        "tag": message.tag,
        "message_group": message.message_group or None,
        "properties": [],
        "deliver_timestamp": None,
        "store_timestamp": WHEN,
        "origin": None,
        **more,
    }


def event(message: Message, offset: int, group: str, what: str, at: int) -> dict[str, Any]:
    return {
        "physical_offset": at,
        "topic": message.kind.topic,
        "queue_id": 0,
        "queue_offset": offset,
        "message_id": message.id,
        "consumer_group": group,
        "event": what,
        "attempt": 1,
        "client_id": "client",
        "event_timestamp": WHEN,
    }


def whole(kind: Kind) -> tuple[Ledger, View]:
    """Two messages, both delivered to both groups, and acknowledged."""
    ledger = Ledger()
    view = View("lake", [], [], [])
    for number in range(2):
        message = sent(ledger, kind, number)
        if kind is TRANSACTION:
            ledger.ended(message, End.DELIVERED, "committed")
        view.messages.append(row(message, number))
        for group in kind.groups:
            got = made(kind.topic, message.body, message_id=message.id, tag="red", delivery_attempt=1)
            ledger.delivered(group, got)
            ledger.acknowledged(group, got)
            for what in ("delivered", "acked"):
                at = 2000 + 10 * number + len(view.events)
                view.events.append(event(message, number, group, what, at))
    for group in kind.groups:
        view.offsets.append(
            {"consumer_group": group, "topic": kind.topic, "queue_id": 0, "committed_offset": 2}
        )
    return ledger, view


def again(ledger: Ledger, kind: Kind) -> None:
    """The first message is delivered once more, behind its acknowledgement."""
    got = made(kind.topic, b"body", message_id=f"{kind.name}-0", tag="red", delivery_attempt=2)
    ledger.delivered(kind.groups[0], got)


def dead(view: View, kind: Kind, offset: int) -> None:
    """A dead letter of the first message, whose origin is said to be at `offset`."""
    origin = {
        "topic": kind.topic,
        "queue_id": 0,
        "queue_offset": offset,
        "consumer_group": kind.groups[1],
        "attempt": 4,
    }
    copy = {**view.messages[0], "topic": f"%DLQ%{kind.groups[1]}", "origin": origin}
    view.messages.append(copy)


def turned(view: View, what: str) -> None:
    """The events of the two messages come in the other order."""
    view.events.sort(key=lambda each: (each["event"] == what, -each["queue_offset"]))


Damage = Callable[[Ledger, View], object]
DAMAGES: dict[str, tuple[Kind, Damage, str]] = {
    "a message that is gone": (NORMAL, lambda _, view: view.messages.pop(0), "ended as GONE"),
    "a message that is there twice": (
        NORMAL,
        lambda _, view: view.messages.append({**view.messages[0], "queue_offset": 1}),
        "has rows in",
    ),
    "a message that nobody sent": (NORMAL, lambda ledger, _: ledger.messages.pop("normal-0"), "nobody sent"),
    "another body": (NORMAL, lambda _, view: view.messages[0].update(body=b"other"), "body, tag or message"),
    "a lost acknowledgement": (NORMAL, lambda _, view: view.events.pop(), "has not settled it"),
    "an acknowledgement that is there twice": (
        NORMAL,
        lambda _, view: view.events.append(view.events[-1]),
        "settled 2 times",
    ),
    "a delivery without its event": (NORMAL, lambda _, view: view.events.pop(0), "is not one event"),
    "a delivery behind the acknowledgement": (
        NORMAL,
        lambda ledger, _: again(ledger, NORMAL),
        "delivered again",
    ),
    "an offset that stayed behind": (
        NORMAL,
        lambda _, view: view.offsets[0].update(committed_offset=1),
        "is the last of",
    ),
    "a dead letter of an acknowledged message": (
        NORMAL,
        lambda _, view: dead(view, NORMAL, 0),
        "settled 2 times",
    ),
    "a dead letter of another origin": (NORMAL, lambda _, view: dead(view, NORMAL, 1), "is another message"),
    "a dead letter that is not there": (
        NORMAL,
        lambda ledger, _: ledger.forwarded.add((NORMAL.groups[1], "normal-0")),
        "there is no dead letter",
    ),
    "messages of a group in another order": (FIFO, lambda _, view: view.messages.reverse(), "was sent later"),
    "messages of a group in two queues": (
        FIFO,
        lambda _, view: view.messages[1].update(queue_id=1),
        "is in two queues",
    ),
    "deliveries in another order": (FIFO, lambda _, view: turned(view, "delivered"), "delivered behind"),
    "acknowledgements in another order": (FIFO, lambda _, view: turned(view, "acked"), "acked behind"),
    "a timer that never went": (
        DELAY,
        lambda ledger, view: view.messages.append(row(ledger.messages["delay-0"], 7, "rmq_sys_wheel_timer")),
        "waits in rmq_sys_wheel_timer",
    ),
    "a message before its time": (
        DELAY,
        lambda ledger, view: (
            view.messages.append(row(early := sent(ledger, DELAY, 2, 1 << 42), 2, deliver_timestamp=WHEN)),
            early,
        ),
        "before its time",
    ),
    "a half that never ended": (
        TRANSACTION,
        lambda ledger, view: view.messages.append(
            row(ledger.messages["transaction-0"], 7, "RMQ_SYS_TRANS_HALF_TOPIC")
        ),
        "waits in RMQ_SYS_TRANS_HALF_TOPIC",
    ),
    "a message of a transaction that was rolled back": (
        TRANSACTION,
        lambda ledger, _: setattr(ledger.messages["transaction-0"], "may_end", frozenset((End.GONE,))),
        "ended as DELIVERED, it may as ['GONE']",
    ),
    "a committed one that was given up": (
        TRANSACTION,
        lambda _, view: view.messages[0].update(topic="TRANS_CHECK_MAX_TIME_TOPIC"),
        "ended as GIVEN_UP",
    ),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_what_was_answered_is_no_difference(kind: Kind) -> None:
    ledger, view = whole(kind)
    assert differences(ledger, view) == []
    assert outstanding(view) == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damage_is_told(damage: str) -> None:
    kind, do, expected = DAMAGES[damage]
    ledger, view = whole(kind)
    do(ledger, view)
    found = differences(ledger, view)
    assert any(expected in what for _, what in found), found
    text = told(found, ledger, view)
    assert expected in text
    assert f"life of {found[0][0]}" in text


def test_a_life_has_what_clients_and_the_lake_saw() -> None:
    ledger, view = whole(NORMAL)
    text = told([("normal-1", "is looked at")], ledger, view)
    for expected in (
        "the send was answered OK",
        "delivered to steady-normal",
        "in soak-normal queue 0 offset 1",
        "acked, rough",
    ):
        assert expected in text
    assert "normal-0" not in text


def test_calls_without_an_answer_leave_every_end() -> None:
    ledger = Ledger()
    message = Message("id", TRANSACTION, 0, b"body", "", "", 0, PLANS[0])
    ledger.sending(message)
    assert message.may_end == {End.DELIVERED, End.GONE, End.GIVEN_UP}
    assert differences(ledger, View("lake", [], [], [])) == []
    assert message.plan.resolution == pb.COMMIT
    ledger.kept(message)
    assert message.may_end == {End.DELIVERED, End.GIVEN_UP}
