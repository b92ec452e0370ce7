"""Pulls: messages of a queue from an offset on, which stay where they are, and offsets that a client sets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from broker_gateway.messaging.poll import RECEIVE_BYTES
from broker_gateway.messaging.pull import PullTurns
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.duration_pb2 import Duration
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request

SQL = pb.FilterExpression(type=pb.SQL, expression="amount > 5")


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def queue(topic: str = "orders", number: int = 0, broker: str = "") -> pb.MessageQueue:
    return pb.MessageQueue(topic=pb.Resource(name=topic), id=number, broker=pb.Broker(name=broker))


def pull_request(offset: int, wait_s: float = 0, **asked: Any) -> rpc.PullMessageRequest:
    wait = Duration()
    wait.FromMilliseconds(int(wait_s * 1000))
    chosen = {
        "group": pb.Resource(name="billing"),
        "message_queue": queue(),
        "batch_size": 32,
        "filter_expression": pb.FilterExpression(type=pb.TAG, expression="*"),
        **asked,
    }
    return rpc.PullMessageRequest(offset=offset, long_polling_timeout=wait, **chosen)


def told(responses: list[rpc.PullMessageResponse]) -> tuple[int, list[bytes], int | None]:
    """Code, bodies, and where to go on."""
    code = next(each.status.code for each in responses if each.HasField("status"))
    bodies = [each.message.body for each in responses if each.HasField("message")]
    following = [each.next_offset for each in responses if each.HasField("next_offset")]
    return code, bodies, following[0] if following else None


def pull(broker: InProcessBroker, offset: int, **asked: Any) -> tuple[int, list[bytes], int | None]:
    return told(broker.call("PullMessage", pull_request(offset, **asked)))


def update(broker: InProcessBroker, offset: int, group: str = "billing", **asked: Any) -> pb.Status:
    request = rpc.UpdateOffsetRequest(
        group=pb.Resource(name=group), **{"message_queue": queue(), "offset": offset, **asked}
    )
    status: pb.Status = broker.call("UpdateOffset", request).status
    return status


def fill(broker: InProcessBroker, count: int) -> None:
    for first in range(0, count, 100):
        sent = [
            message("orders", b"%d" % n, {"amount": str(n)}) for n in range(first, min(first + 100, count))
        ]
        assert broker.call("SendMessage", send_request(*sent)).status.code == pb.OK


def test_a_queue_is_read_batch_by_batch_and_nothing_is_in_flight(broker: InProcessBroker) -> None:
    fill(broker, 70)
    at, found = 0, list[bytes]()
    for _ in range(3):
        code, bodies, following = pull(broker, at)
        assert code == pb.OK
        assert following is not None
        at = following
        found += bodies
    assert found == [b"%d" % n for n in range(70)]
    assert pull(broker, at) == (pb.MESSAGE_NOT_FOUND, [], 70)
    assert pull(broker, 10, batch_size=2) == (pb.OK, [b"10", b"11"], 12)
    assert pull(broker, 10, batch_size=1000)[2] == 42
    assert broker.committed("orders", "billing") is None
    assert len(broker.receive("orders", "billing", batch=32)[1]) == 32


def test_a_pulled_message_has_all_but_a_delivery(broker: InProcessBroker) -> None:
    broker.send("orders", b"x", tag="a", keys=["k"])
    (given,) = [
        each.message for each in broker.call("PullMessage", pull_request(0)) if each.HasField("message")
    ]
    (received,) = broker.receive("orders", "billing")[1]
    for name in ("receipt_handle", "delivery_attempt", "invisible_duration"):
        assert not given.system_properties.HasField(name)
        received.system_properties.ClearField(name)
    assert given == received


def test_filters_pass_over_what_is_not_wanted(broker: InProcessBroker) -> None:
    fill(broker, 1000)
    rare = pb.FilterExpression(type=pb.SQL, expression="amount BETWEEN 990 AND 992")
    assert pull(broker, 0, filter_expression=rare) == (pb.OK, [b"990", b"991", b"992"], 1000)
    assert pull(broker, 0, filter_expression=SQL, batch_size=2) == (pb.OK, [b"6", b"7"], 8)
    none = pb.FilterExpression(type=pb.TAG, expression="none")
    assert pull(broker, 0, filter_expression=none) == (pb.MESSAGE_NOT_FOUND, [], 1000)
    wrong = pb.FilterExpression(type=pb.SQL, expression="amount >")
    assert pull(broker, 0, filter_expression=wrong)[0] == pb.ILLEGAL_FILTER_EXPRESSION


def test_who_waits_is_woken_by_what_it_wants(broker: InProcessBroker) -> None:
    broker.create_topic("others")
    waiting = broker.begin("PullMessage", pull_request(0, wait_s=10, filter_expression=SQL))
    other = broker.begin("PullMessage", pull_request(0, wait_s=10, message_queue=queue("others")))
    broker.call("SendMessage", send_request(message("orders", b"3", {"amount": "3"})))
    assert not waiting.done
    broker.call("SendMessage", send_request(message("orders", b"8", {"amount": "8"})))
    assert told(waiting.response) == (pb.OK, [b"8"], 2)
    assert not other.done
    broker.advance(10)
    assert told(other.response) == (pb.MESSAGE_NOT_FOUND, [], 0)


@pytest.mark.parametrize(("offset", "nearest"), [(-1, 0), (4, 3), (1 << 62, 3)])
def test_an_offset_outside_of_the_queue_is_refused_with_the_nearest(
    broker: InProcessBroker, offset: int, nearest: int
) -> None:
    fill(broker, 3)
    assert pull(broker, offset) == (pb.ILLEGAL_OFFSET, [], nearest)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"batch_size": 0}, pb.BAD_REQUEST),
        ({"message_queue": queue("nobody")}, pb.TOPIC_NOT_FOUND),
        ({"message_queue": queue("")}, pb.ILLEGAL_TOPIC),
        ({"message_queue": queue(number=1)}, pb.BAD_REQUEST),
        ({"message_queue": queue(number=-1)}, pb.BAD_REQUEST),
        ({"message_queue": queue(broker="elsewhere")}, pb.BAD_REQUEST),
        ({"group": pb.Resource(name="no group!")}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"wait_s": -1}, pb.ILLEGAL_POLLING_TIME),
    ],
)
def test_what_cannot_be_pulled_is_refused(broker: InProcessBroker, asked: dict[str, Any], code: int) -> None:
    groups = len(list(broker.broker.catalog.groups()))
    assert pull(broker, 0, **asked) == (code, [], None)
    assert len(list(broker.broker.catalog.groups())) == groups


def test_a_pull_makes_no_group(broker: InProcessBroker) -> None:
    fill(broker, 1)
    assert pull(broker, 0, group=pb.Resource(name="new"))[0] == pb.OK
    assert broker.broker.catalog.group("new") is None


def test_pulls_that_wait_are_bounded_and_end_with_the_broker() -> None:
    with InProcessBroker(lakeMaxWaitingReceives="2") as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        waiting = [broker.begin("PullMessage", pull_request(0, wait_s=100)) for _ in range(2)]
        assert pull(broker, 0, wait_s=100)[0] == pb.TOO_MANY_REQUESTS
        assert pull(broker, 0)[0] == pb.MESSAGE_NOT_FOUND
        broker.hang_up(waiting[0])
        third = broker.begin("PullMessage", pull_request(0, wait_s=100))
        assert not third.done
        broker.run(broker.broker.drain())
        assert [told(each.response) for each in (waiting[1], third)] == [(pb.MESSAGE_NOT_FOUND, [], 0)] * 2


def test_an_offset_that_a_client_sets_is_its_groups(broker: InProcessBroker) -> None:
    fill(broker, 10)
    assert update(broker, 4).code == pb.OK
    assert broker.committed("orders", "billing") == 4
    broker.restart()
    assert broker.committed("orders", "billing") == 4
    assert [each.body for each in broker.receive("orders", "billing")[1]] == [b"%d" % n for n in range(4, 10)]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"offset": -1}, pb.BAD_REQUEST),
        ({"group": "nobody"}, pb.CONSUMER_GROUP_NOT_FOUND),
        ({"group": " "}, pb.ILLEGAL_CONSUMER_GROUP),
        ({"message_queue": queue("nobody")}, pb.TOPIC_NOT_FOUND),
        ({"message_queue": queue(number=9)}, pb.BAD_REQUEST),
        ({"message_queue": queue(broker="elsewhere")}, pb.BAD_REQUEST),
    ],
)
def test_an_offset_that_cannot_be_set_is_refused(
    broker: InProcessBroker, asked: dict[str, Any], code: int
) -> None:
    fill(broker, 3)
    assert update(broker, **{"offset": 1, **asked}).code == code
    assert broker.committed("orders", "billing") is None


def test_pulls_that_search_take_turns() -> None:
    """One look in a turn of the event loop, addresses in turn, and one whose client went away holds up no other."""
    turns, looks, passed = PullTurns(), list[str](), 0

    async def pull(host: str) -> None:
        for _ in range(3):
            before = passed
            await turns.next(host)
            looks.append(host)
            assert passed > before, "others were served in between"

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def count() -> None:
            nonlocal passed
            passed += 1
            loop.call_soon(count)

        loop.call_soon(count)
        gone = asyncio.create_task(turns.next("many"))
        many = [asyncio.create_task(pull("many")) for _ in range(4)]
        await asyncio.sleep(0)
        gone.cancel()
        before = passed
        await asyncio.gather(pull("one"), *many)
        assert passed - before >= len(looks) - 1 == 14

    asyncio.run(run())
    assert "one" not in looks[8:], "it has every second turn"


def test_pulls_with_costly_filters_wait_for_their_turn(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.send("orders", b"m", properties={"a": "x"})
    waited: list[str] = []
    following = PullTurns.next

    async def counted(turns: PullTurns, host: str) -> None:
        waited.append(host)
        await following(turns, host)

    monkeypatch.setattr(PullTurns, "next", counted)
    costly = pb.FilterExpression(type=pb.SQL, expression=" OR ".join(["a CONTAINS 'x'"] * 50))
    assert told(broker.call("PullMessage", pull_request(0, batch_size=1)))[:2] == (pb.OK, [b"m"])
    assert waited == [], "a look that costs little comes at once"
    asked = pull_request(0, batch_size=1, filter_expression=costly)
    assert told(broker.call("PullMessage", asked))[:2] == (pb.OK, [b"m"])
    assert waited == ["127.0.0.1"]


def test_a_pull_that_is_full_goes_on_at_the_message_that_did_not_fit(broker: InProcessBroker) -> None:
    sent = [bytes([number]) * 200_000 for number in range(8)]
    for body in sent:
        broker.send("orders", body)
    found: list[bytes] = []
    while len(found) < len(sent):
        code, bodies, following = pull(broker, len(found))
        assert (code, following) == (pb.OK, len(found) + len(bodies))
        assert sum(map(len, bodies)) <= RECEIVE_BYTES
        found += bodies
    assert found == sent
