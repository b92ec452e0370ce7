"""Receives, end to end in this process: what fails or is unreadable loses and strands nothing."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal import journal as journal_module
from broker_gateway.journal.replay import records_from
from broker_gateway.messaging import poll_search
from broker_gateway.messaging.poll import Poll
from broker_gateway.messaging.take import Taker
from broker_gateway.metadata.catalog import Group, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC
from broker_gateway.observability.metrics import Metrics
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.faults import flip_byte
from lakebroker_testing.messages import (
    bodies,
    change_invisible_request,
    message,
    received,
    send_request,
)
from store.errors import StoreDamagedError
from store.log.record import Host, PendingRecord

BODY_AT = 88
"""Where the body of a record begins whose hosts are IPv4."""
KEY = QueueKey("billing", "orders", 0)


@pytest.fixture(params=["plain", "compiled"])
def broker(request: pytest.FixtureRequest) -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        if request.param == "compiled":
            assert broker.broker.load_compiled()
        broker.create_topic("orders")
        broker.create_group("billing")
        yield broker


def events(broker: InProcessBroker, kind: journal_pb2.EventKind) -> list[int]:
    """Queue offsets of the group's events of a kind, as the journal has them."""
    found: list[int] = []
    for _, record in records_from(broker.store, JOURNAL_TOPIC, 0, 0):
        for change in journal_pb2.Batch.FromString(bytes(record.body)).queues:
            if (change.consumer_group, change.topic) == (KEY.group, KEY.topic):
                found += [
                    offset for each in change.events if each.kind == kind for offset in each.queue_offset
                ]
    return found


def damage(broker: InProcessBroker, offset: int, *, body: bool = False) -> None:
    """Makes the record at a queue offset unreadable, or flips a bit of its body."""
    physical, sizes, _ = broker.store.index.entries("orders", 0, offset, 1)
    view = broker.store.read(int(physical[0]), int(sizes[0]))
    (number, rest) = divmod(int(physical[0]), broker.store.segment_size)
    assert len(view) == sizes[0]
    del view
    segment = sorted((broker.root / "commitlog").iterdir())[number]
    if body:
        flip_byte(segment, rest + BODY_AT, 1)
        return
    with segment.open("r+b") as file:
        file.seek(rest + 4)
        file.write(b"\0\0\0\0")  # the magic


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), StoreDamagedError("a flipped byte")]
)
def test_a_receive_that_fails_takes_nothing(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The index fails behind the first part of the queue; then an acknowledgement journals how far the queue is."""
    broker.send("orders", b"held", tag="a")
    held = broker.receive("orders", "billing")[1]
    for body in (b"1", b"2"):
        broker.send("orders", body, tag="a")
    entries = type(broker.store.index).entries
    calls = 0

    def fails(self: object, topic: str, queue_id: int, start: int, count: int) -> object:
        nonlocal calls
        calls += topic == "orders"
        if topic == "orders" and calls > 1:
            raise error
        found = entries(self, topic, queue_id, start, count)  # type: ignore[arg-type]
        return type(found)(*(column[:2] for column in found))

    with monkeypatch.context() as patched:
        patched.setattr(type(broker.store.index), "entries", fails)
        broker.receive("orders", "billing", filter="a")
    assert broker.ack("orders", "billing", *held).status.code == pb.OK
    broker.crash()
    broker.advance(60)
    assert bodies(broker.receive("orders", "billing", filter="a")[1]) == [b"1", b"2"]


def test_a_reply_that_cannot_be_made_takes_nothing(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    broker.send("orders", b"held")
    held = broker.receive("orders", "billing")[1]
    broker.send("orders", b"1", b"2", b"3")
    plain = request.node.callspec.params["broker"] == "plain"  # it reads each by itself
    broker.store.inject("read", OSError(errno.EIO, "Input/output error"), after=2 if plain else 0)
    code, messages = broker.receive("orders", "billing")
    assert (code, messages) == (pb.INTERNAL_SERVER_ERROR, [])
    assert broker.ack("orders", "billing", *held).status.code == pb.OK
    broker.crash()
    assert bodies(broker.receive("orders", "billing")[1]) == [b"1", b"2", b"3"]


def test_one_queue_that_fails_keeps_no_other_from_being_received(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("orders", 4)
    for number in range(16):
        broker.send("orders", b"%d" % number)
    index = broker.store.index
    real = type(index).entries

    def fails(self: object, topic: str, queue_id: int, start: int, count: int) -> object:
        if topic == "orders" and queue_id == 2:
            raise StoreDamagedError("a flipped byte")
        return real(self, topic, queue_id, start, count)  # type: ignore[arg-type]

    monkeypatch.setattr(type(index), "entries", fails)
    there = {queue_id: index.max_offset("orders", queue_id) for queue_id in range(4)}
    taken: dict[int, int] = dict.fromkeys(range(4), 0)
    code, messages = broker.receive("orders", "billing")
    while messages:
        for each in messages:
            taken[each.system_properties.queue_id] += 1
        code, messages = broker.receive("orders", "billing")
    assert code == pb.INTERNAL_SERVER_ERROR, "nothing but the damaged queue is left"
    assert taken == {**there, 2: 0}


@pytest.mark.parametrize("tags", ["*", "a"])
def test_each_record_passed_over_leaves_one_event(broker: InProcessBroker, tags: str) -> None:
    for body in (b"0", b"1", b"2"):
        broker.send("orders", body, tag="a")
    index = broker.store.index
    index.raise_next("orders", 0, 5)  # 3 and 4: no record has them
    for body in (b"5", b"6"):
        broker.send("orders", body, tag="a")
    broker.send("orders", b"7", tag="b")
    damage(broker, 1)
    damage(broker, 6)
    taken: list[bytes] = []
    while messages := broker.receive("orders", "billing", batch=2, filter=tags)[1]:
        taken += bodies(messages)
        broker.ack("orders", "billing", *messages)
    assert taken == [b"0", b"2", b"5", *([b"7"] if tags == "*" else [])]
    assert broker.committed("orders", "billing") == 8
    assert events(broker, journal_pb2.SKIPPED) == [1, 3, 4, 6]
    broker.restart()
    assert broker.receive("orders", "billing", filter=tags)[1] == []
    assert events(broker, journal_pb2.SKIPPED) == [1, 3, 4, 6]


def test_a_message_whose_body_is_damaged_is_given_to_nobody(
    broker: InProcessBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its digest is made of what is read: a consumer could not tell."""
    broker.send("orders", b"first", b"second", b"third")
    damage(broker, 1, body=True)
    assert bodies(broker.receive("orders", "billing")[1]) == [b"first", b"third"]
    assert events(broker, journal_pb2.SKIPPED) == [1]
    out = capsys.readouterr()
    assert "the body's CRC does not match" in out.out + out.err


def test_how_many_damaged_messages_were_passed_over_is_told_in_full(broker: InProcessBroker) -> None:
    """Without a later one: a damaged segment may be all there is."""
    broker.send("orders", b"first", b"second", b"third", b"fourth")
    for offset in range(3):
        damage(broker, offset, body=True)
    with capture_logs() as lines:
        assert bodies(broker.receive("orders", "billing")[1]) == [b"fourth"]
        broker.advance(60)
    assert [each["messages"] for each in lines if "passed over" in each["event"]] == [1, 2]


def test_a_message_damaged_after_its_delivery_leaves_one_event(broker: InProcessBroker) -> None:
    """Also at its last attempt, where it would become a dead letter."""
    broker.create_group("billing", retry_max_times=1)
    broker.send("orders", b"0", b"1", b"2")
    broker.receive("orders", "billing", batch=2)
    damage(broker, 0)
    broker.advance(10.5)
    messages = broker.receive("orders", "billing")[1]
    assert bodies(messages) == [b"1", b"2"]
    damage(broker, 1)
    broker.advance(60)
    assert bodies(broker.receive("orders", "billing")[1]) == [b"2"]
    assert events(broker, journal_pb2.SKIPPED) == [0, 1]
    assert broker.committed("orders", "billing") == 2


def test_a_nack_that_is_suspended_counts_once(broker: InProcessBroker) -> None:
    broker.send("orders", b"0")
    (message,) = broker.receive("orders", "billing")[1]
    for _ in range(3):
        request = change_invisible_request("orders", "billing", message, 10_000)
        request.suspend = True
        answer = broker.call("ChangeInvisibleDuration", request)
        assert answer.status.code == pb.OK
        message.system_properties.receipt_handle = answer.receipt_handle
    broker.advance(10.5)
    (message,) = broker.receive("orders", "billing", filter="another")[1]
    assert message.system_properties.delivery_attempt == 1


def test_a_commit_moves_the_offset_and_nothing_else(broker: InProcessBroker) -> None:
    for number in range(10):
        broker.send("orders", b"%d" % number)
    held = broker.receive("orders", "billing", batch=3)[1]

    def commit(offset: int) -> None:
        broker.do(lambda: broker.broker.parts.offset_changes.commit("billing", "orders", 0, offset))

    commit(6)
    assert broker.committed("orders", "billing") == 6
    broker.crash()
    assert broker.committed("orders", "billing") == 6
    answer = broker.ack("orders", "billing", held[0])
    assert answer.status.code == pb.OK
    assert bodies(broker.receive("orders", "billing", batch=2)[1]) == [b"6", b"7"]
    broker.advance(10.5)
    assert sorted(bodies(broker.receive("orders", "billing")[1])) == [b"1", b"2", b"6", b"7", b"8", b"9"]


def test_consumers_that_pull_go_back_too(broker: InProcessBroker) -> None:
    """Nothing is in flight: the offset is where a receive goes on."""
    for number in range(4):
        broker.send("orders", b"%d" % number)
    changes = broker.broker.parts.offset_changes
    for offset in (4, 1):
        broker.do(partial(changes.commit, "billing", "orders", 0, offset))
    broker.restart()
    assert broker.committed("orders", "billing") == 1
    assert bodies(broker.receive("orders", "billing")[1]) == [b"1", b"2", b"3"]


def test_a_waiting_tag_receive_leaves_the_loop_to_others(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset puts a long queue without its tag before it: others are served before that is looked through."""
    count = 600_000
    fill(broker, count)
    waiting = broker.begin_receive("orders", "billing", wait_ms=60_000, filter="rare")
    index = broker.store.index
    looks = most_in_an_iteration(
        broker,
        monkeypatch,
        index,
        "entries",
        lambda found: len(found.offsets),
        lambda: broker.reset("orders", "billing", 0, 0),
    )
    assert not waiting.done
    assert 0 < looks <= 70_000, "queue entries looked at in one iteration of the loop"
    broker.send("orders", b"found", tag="rare")
    assert bodies(waiting.messages) == [b"found"]


def fill(broker: InProcessBroker, count: int) -> None:
    """Queue entries without a record: as long as nothing takes them, the index is all that is read."""
    broker.send("orders", b"first", tag="often")
    end = broker.store.max_offset
    sizes, codes = np.ones(count, dtype=np.int64), np.full(count, 12345, dtype=np.int64)
    broker.store.index.put_columns("orders", 0, 1, end, sizes, codes)


def most_in_an_iteration(
    broker: InProcessBroker,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    call: str,
    size: Callable[[Any], int],
    act: Callable[[], None],
) -> int:
    """The most that a call brings, by the size of what it returns, in one iteration of the event loop."""
    function, found = getattr(owner, call), Counter[int]()

    def counted(*arguments: Any) -> Any:
        result = function(*arguments)
        found[broker.loop.iterations] += size(result)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(owner, call, counted)
        act()
    return max(found.values())


def test_many_messages_that_are_due_at_once_leave_the_loop_to_others(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each becomes a dead letter, which is read and appended."""
    count = 600
    broker.create_group("billing", retry_max_times=0)
    for start in range(0, count, 100):
        broker.send("orders", *[b"%d" % number for number in range(start, start + 100)])
    while broker.receive("orders", "billing")[1]:
        pass
    copies = most_in_an_iteration(
        broker, monkeypatch, broker.store, "append", lambda placed: 1, lambda: broker.advance(10.5)
    )
    assert broker.store.index.max_offset("%DLQ%billing", 0) == count
    assert broker.committed("orders", "billing") == count
    assert 0 < copies <= 64, "dead letters in one iteration of the loop"


def test_large_messages_come_some_at_a_time(broker: InProcessBroker) -> None:
    """A reply that is made in one go stays below what would hold the event loop for long, and nothing is left out."""
    for number in range(16):
        broker.send("orders", bytes((number,)) * (200 << 10))
    found = [bodies(broker.receive("orders", "billing", batch=32)[1]) for _ in range(8)]
    assert [sum(map(len, each)) <= (1 << 20) + (200 << 10) for each in found] == [True] * 8
    assert sorted(body[0] for each in found for body in each) == list(range(16))


def test_messages_that_only_look_like_the_filter_count_by_their_bytes(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tags of one hash code: each message is read before the filter passes it over, and others have their turn meanwhile."""
    count, looks = 200, []
    for _ in range(count):
        broker.send("orders", b"x" * 40_000, tag="BB")
    broker.send("orders", b"found", tag="Aa")
    monkeypatch.setattr(Metrics, "searched", lambda _, seconds: looks.append(seconds))
    assert bodies(broker.receive("orders", "billing", filter="Aa")[1]) == [b"found"]
    assert len(looks) >= 3, "looks at 8 MB"


def test_who_waits_sees_queues_that_a_topic_gets_meanwhile(broker: InProcessBroker) -> None:
    broker.create_topic("orders", 4)
    broker.receive("orders", "billing")
    call = broker.client("waiting").begin_receive("orders", "billing", wait_ms=20_000)
    broker.create_topic("orders", 8)

    def append() -> None:
        broker.store.append([PendingRecord("orders", 5, b"m", b"", 1, Host("127.0.0.1", 1).packed)])
        broker.broker.wakeups.arrived("orders", (5,))

    broker.do(append)
    broker.settle()
    assert call.done
    assert bodies(received(call.response)[1]) == [b"m"]


def test_a_reset_reaches_all_who_wait(broker: InProcessBroker) -> None:
    """One looks through the queue; what it leaves is for those behind it."""
    for number in range(4):
        broker.send("orders", b"%d" % number, tag="often" if number < 2 else "rare")
    held = broker.receive("orders", "billing")[1]
    broker.ack("orders", "billing", *held)
    calls = [
        broker.begin_receive("orders", "billing", wait_ms=60_000, filter="rare", batch=1) for _ in range(3)
    ]
    broker.reset("orders", "billing", 0, 0)
    assert sorted(each.body for call in calls if call.done for each in call.messages) == [b"2", b"3"]
    assert sum(call.done for call in calls) == 2


@pytest.mark.parametrize("fails", [False, True])
def test_who_waits_behind_a_long_look_that_ends_early_goes_on(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The first in line expires, or fails, while it looks through a queue; what the second waits for is at the end."""
    fill(broker, 200_000)
    broker.send("orders", b"last", tag="often")
    first = broker.begin_receive("orders", "billing", wait_ms=5_000, filter="rare")
    second = broker.begin_receive("orders", "billing", wait_ms=60_000, filter="often")
    index = type(broker.store.index)
    entries, calls = index.entries, 0

    def ends(self: object, topic: str, queue_id: int, start: int, count: int) -> object:
        nonlocal calls
        calls += topic == "orders"
        if calls == 12:  # in its second look
            broker.clock.move(5_000_000_000)
            if fails:
                raise StoreDamagedError("a flipped byte")
        return entries(self, topic, queue_id, start, count)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "entries", ends)
    broker.reset("orders", "billing", 0, 0)
    assert first.done
    assert second.done
    assert bodies(second.messages) == [b"last"]


def test_a_filter_may_decide_by_properties(broker: InProcessBroker) -> None:
    messages = [message("orders", b"%d" % amount, {"amount": str(amount)}) for amount in range(3, 9)]
    broker.call("SendMessage", send_request(*messages, message("orders", b"none", {"amount": "many"})))
    wanted = pb.FilterExpression(type=pb.SQL, expression="amount > 5 AND amount <> 7")
    _, found = broker.receive("orders", "billing", filter=wanted)
    assert [bytes(each.body) for each in found] == [b"6", b"8"]
    broker.ack("orders", "billing", *found)
    assert broker.receive("orders", "billing", filter=wanted)[1] == []
    assert broker.committed("orders", "billing") == 7, "what is not wanted is not waited for"


SQL = pb.FilterExpression(type=pb.SQL, expression="a > ")


@pytest.mark.parametrize(
    ("topic", "group", "asked", "code"),
    [
        ("unknown", "billing", {"filter": SQL}, pb.ILLEGAL_FILTER_EXPRESSION),
        ("unknown", "billing", {"filter": "||"}, pb.ILLEGAL_FILTER_EXPRESSION),
        ("no topic!", "", {}, pb.ILLEGAL_CONSUMER_GROUP),
        ("no topic!", "billing", {"batch": 0}, pb.ILLEGAL_TOPIC),
        ("orders", "billing", {"batch": 0, "invisible_ms": 1}, pb.BAD_REQUEST),
        ("orders", "billing", {"invisible_ms": 1}, pb.ILLEGAL_INVISIBLE_TIME),
        ("orders", "new", {"filter": SQL}, pb.ILLEGAL_FILTER_EXPRESSION),
    ],
)
def test_what_is_malformed_is_refused_before_anything_is_looked_up(
    broker: InProcessBroker, topic: str, group: str, asked: dict[str, Any], code: pb.Code
) -> None:
    groups = len(list(broker.broker.catalog.groups()))
    assert broker.receive(topic, group, **asked)[0] == code
    assert len(list(broker.broker.catalog.groups())) == groups


def due_again(broker: InProcessBroker, count: int) -> None:
    """Messages that were delivered, and whose invisible time is over."""
    broker.send("orders", *(b"%d" % number for number in range(count)))
    while broker.receive("orders", "billing")[1]:
        pass
    broker.advance(11)


def test_who_waits_gets_what_is_due_behind_what_cannot_be_read(broker: InProcessBroker) -> None:
    due_again(broker, 40)
    for offset in range(32):
        damage(broker, offset)
    call = broker.begin_receive("orders", "billing", wait_ms=60_000)
    assert call.done
    assert bodies(call.messages) == [b"%d" % number for number in range(32, 40)]


def test_what_cannot_be_read_makes_room_in_a_full_queue() -> None:
    with InProcessBroker(lakeMaxInFlightPerQueue="4") as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        due_again(broker, 4)
        broker.send("orders", b"new", b"newer")
        for offset in range(4):
            damage(broker, offset)
        call = broker.begin_receive("orders", "billing", wait_ms=60_000)
        assert call.done
        assert bodies(call.messages) == [b"new", b"newer"]


def test_what_a_receive_took_goes_back_when_some_of_it_is_not_journaled(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second queue's events do not fit the record, which cannot be appended: the first one's are lost with it."""
    broker.create_topic("orders", 2)
    for number in range(8):
        broker.send("orders", b"%d" % number)
    monkeypatch.setattr(journal_module, "EVENTS_A_RECORD", 5)
    broker.store.inject("append", OSError(errno.ENOSPC, "No space left on device"))
    call = broker.begin_receive("orders", "billing")
    assert call.response[0].status.code == pb.INTERNAL_SERVER_ERROR
    assert call.messages == []
    broker.store.heal()
    broker.advance(6)
    assert sorted(bodies(broker.receive("orders", "billing")[1])) == [b"%d" % number for number in range(8)]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (
            lambda broker: broker.broker.parts.groups.delete("billing", clean_offsets=True),
            pb.CONSUMER_GROUP_NOT_FOUND,
        ),
        (
            lambda broker: broker.broker.parts.groups.put(Group("billing", consume_enabled=False)),
            pb.FORBIDDEN,
        ),
        (lambda broker: broker.broker.parts.topics.put(Topic("orders", 1, 1, 2), shrink=False), pb.FORBIDDEN),
        (lambda broker: broker.broker.parts.topics.delete("orders"), pb.TOPIC_NOT_FOUND),
    ],
    ids=["deleted", "switched off", "not readable", "topic deleted"],
)
def test_who_waits_is_told_what_became_of_its_group_and_topic(
    broker: InProcessBroker, change: Callable[[InProcessBroker], Any], code: pb.Code
) -> None:
    broker.send("orders", b"settled")
    broker.ack("orders", "billing", *broker.receive("orders", "billing")[1])
    call = broker.begin_receive("orders", "billing", wait_ms=60_000)
    broker.do(lambda: change(broker))
    broker.advance(0.01)
    assert call.response[0].status.code == code
    assert call.messages == []


def test_a_search_over_several_ticks_ends_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll_search, "SEARCH", 1024)
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        for _ in range(100):
            broker.send("orders", *[b"x"] * 32, tag="common")
        broker.send("orders", b"wanted", tag="rare")
        delete = partial(broker.broker.parts.groups.delete, "billing", clean_offsets=True)
        take, deletes = Taker.take, [delete]

        def delete_meanwhile(taker: Taker, poll: Poll) -> bool:
            found = take(taker, poll)
            if poll.left and deletes:
                broker.loop.call_soon(deletes.pop())
            return found

        monkeypatch.setattr(Taker, "take", delete_meanwhile)
        call = broker.begin_receive("orders", "billing", wait_ms=60_000, filter="rare")
        assert not deletes
        assert call.response[0].status.code == pb.CONSUMER_GROUP_NOT_FOUND
        assert broker.broker.deliveries.known(KEY) is None
