"""A call that fails fails alone: whatever raises in a tick, every other call of it is answered and no place stays taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from broker_gateway.api.extensions import AppendHook, Extensions
from broker_gateway.api.grpc import shortcuts
from broker_gateway.api.grpc.receive import ReceiveService
from broker_gateway.api.grpc.route import RouteService
from broker_gateway.delivery.arrivals import Arrivals
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.messaging import produce as send
from broker_gateway.messaging.attempts import Attempts
from broker_gateway.messaging.take import Taker
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.reply import Reply
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.calls import Call
from lakebroker_testing.messages import ack_request, message, receive_request, send_request
from store import message_store
from store.index.queue_index import QueueIndex
from store.log import commit_log

BAD = b"bad"
HALF_SEGMENT = 1 << 19


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(log_level="critical") as broker:
        prepare(broker)
        yield broker


def prepare(broker: InProcessBroker) -> None:
    for topic in ("orders", "quiet"):
        broker.create_topic(topic)
    for group in ("billing", "audit"):
        broker.create_group(group)


def places(broker: InProcessBroker) -> dict[str, int]:
    """Lanes with calls under way."""
    return {
        bulkhead.name: bulkhead.under_way
        for bulkhead in broker.broker.admission.bulkheads()
        if bulkhead.under_way
    }


def codes(calls: list[Call]) -> list[pb.Code]:
    return [call.response.status.code for call in calls]


def send_together(broker: InProcessBroker, *bodies: bytes) -> list[Call]:
    """One call for each body, read in one tick."""
    with broker.one_tick():
        return [broker.begin("SendMessage", send_request(message("orders", body))) for body in bodies]


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which raises when it is called for the first time."""
    left = [1]

    def called(*arguments: Any, **named: Any) -> Any:
        if left:
            left.clear()
            raise ZeroDivisionError("injected")
        return function(*arguments, **named)

    return called


def whenever(
    function: Callable[..., Any], when: Callable[..., bool], error: Exception | None = None
) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        if when(*arguments, **named):
            raise error or ZeroDivisionError("injected")
        return function(*arguments, **named)

    return called


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("seconds", [2**62, 2**63 - 1, 253_402_300_800, -1, -(2**63)])
def test_a_time_that_is_none_counts_as_absent(broker: InProcessBroker, seconds: int, compiled: bool) -> None:
    if compiled:
        assert broker.broker.load_compiled()
    odd = message("orders", b"odd")
    odd.system_properties.born_timestamp.seconds = seconds
    waiting = broker.begin_receive("orders", "billing", wait_ms=60_000)
    with broker.one_tick():
        calls = [
            broker.begin("SendMessage", send_request(each))
            for each in (message("orders", b"one"), odd, message("orders", b"two"))
        ]
    assert codes(calls) == [pb.OK] * 3
    found = {each.body: each.system_properties.born_timestamp for each in waiting.messages}
    assert set(found) == {b"one", b"odd", b"two"}
    assert found[b"odd"].ToMilliseconds() == broker.clock.now_ms
    assert places(broker) == {}


@pytest.mark.parametrize("error", [ZeroDivisionError("injected"), OverflowError("injected")])
def test_a_record_that_cannot_be_encoded(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    broken = whenever(commit_log.encode_record, lambda record, *_: bytes(record.body) == BAD, error)
    monkeypatch.setattr(commit_log, "encode_record", broken)
    waiting = broker.begin_receive("orders", "billing", wait_ms=60_000)
    calls = send_together(broker, b"one", BAD, b"two", b"three", BAD, b"four")
    failed = pb.INTERNAL_SERVER_ERROR
    assert codes(calls) == [pb.OK, failed, pb.OK, pb.OK, failed, pb.OK]
    assert [each.body for each in waiting.messages] == [b"one", b"two", b"three", b"four"]
    assert places(broker) == {}


STAGES: dict[str, tuple[type, str]] = {
    "append of all": (message_store.MessageStore, "append"),
    "pages ahead": (commit_log.CommitLog, "_prepare"),
    "arrival": (Wakeups, "arrived"),
    "offer": (Arrivals, "appended"),
    "metrics": (Metrics, "sent"),
    "minutes": (MinuteStatistics, "count"),
    "line of who waits": (Taker, "take"),
    "its answer": (Attempts, "remember"),
    "its measure": (Metrics, "received"),
    "journal": (Journal, "_taken"),
}


@pytest.fixture
def failing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The stage fails once, from when something is put in here on. It is emptied by that."""
    owner, name = STAGES[request.param]
    armed: list[bool] = []
    function = getattr(owner, name)

    def called(*arguments: Any, **named: Any) -> Any:
        if armed and (request.param != "append of all" or len(arguments[1]) > 1):
            armed.clear()
            raise ZeroDivisionError("injected")
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, called)
    return armed


@pytest.mark.parametrize("failing", STAGES, indirect=True)
def test_a_stage_that_fails(failing: list[bool], broker: InProcessBroker) -> None:
    """Sends, receives and acks of a tick are all answered; sends that are in the log, with OK."""
    broker.send("quiet", b"before")
    _, (before,) = broker.receive("quiet", "billing")
    waiting = [
        broker.client(f"c-{group}").begin_receive("orders", group, wait_ms=60_000)
        for group in ("billing", "audit")
    ]
    while (room := HALF_SEGMENT - broker.store.max_offset) > 1000:  # what passes it prepares what comes next
        broker.send("quiet", b"x" * min(room - 500, 200_000))
    failing.append(True)
    with broker.one_tick():
        ack = broker.begin("AckMessage", ack_request("quiet", "billing", before))
        sends = [
            broker.begin("SendMessage", send_request(message("orders", body)))
            for body in (b"one", b"two", b"three")
        ]
    assert not failing
    assert ack.done
    assert codes(sends) == [pb.OK] * 3
    broker.advance(61.0)
    assert [call.done for call in waiting] == [True, True]
    assert places(broker) == {}
    assert broker.send("orders", b"after").status.code == pb.OK
    for group in ("billing", "audit"):
        found = [each.body for each in broker.receive("orders", group)[1]]
        assert set(found) <= {b"one", b"two", b"three", b"after"}
        assert b"after" in found


def test_who_waits_beside_one_that_cannot_be_served(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = broker.client("a").begin_receive("orders", "billing", wait_ms=60_000)
    second = broker.client("b").begin_receive("orders", "audit", wait_ms=60_000)
    monkeypatch.setattr(Journal, "after", once(Journal.after))
    assert codes(send_together(broker, b"one")) == [pb.OK]
    assert [call.done for call in (first, second)].count(True) == 1
    broker.advance(61.0)
    assert (first.done, second.done) == (True, True)
    assert places(broker) == {}


def test_an_answer_that_cannot_be_made(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "sent", once(shortcuts.sent))
    assert codes(send_together(broker, b"one", b"two", b"three")) == [pb.INTERNAL_SERVER_ERROR, pb.OK, pb.OK]
    assert places(broker) == {}


def test_an_answer_that_cannot_be_passed_on(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "answer", once(Call.answer))
    first, second = send_together(broker, b"one", b"two")
    assert (first.done, codes([second])) == (False, [pb.OK])
    assert places(broker) == {}


def test_a_caller_that_goes_away_and_fails_at_that(broker: InProcessBroker) -> None:
    bulkhead = broker.broker.admission.pull
    replies = [Reply[int](lambda: 1 // 0, bulkhead) for _ in range(2)]
    for reply in replies:
        reply.cancel()
    assert bulkhead.under_way == 0


def test_journal_callbacks(broker: InProcessBroker) -> None:
    heard: list[Exception | None] = []

    def change() -> None:
        broker.broker.journaled.resources.group(broker.broker.catalog.group("billing"))  # type: ignore[arg-type]
        broker.broker.journal.after(lambda error: 1 // 0)  # type: ignore[arg-type, return-value]
        broker.broker.journal.after(heard.append)

    broker.loop.call_soon(change)
    broker.settle()
    assert heard == [None]
    broker.store.inject("append", OSError(28, "No space left on device"))
    broker.loop.call_soon(change)
    broker.settle()
    assert len(heard) == 2
    assert isinstance(heard[1], OSError)


def test_a_record_that_is_not_indexed_stops_appends(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next one would get its queue offset. The restart indexes it."""
    monkeypatch.setattr(QueueIndex, "put", once(QueueIndex.put))
    calls = send_together(broker, b"one", b"two")
    assert codes(calls) == [pb.INTERNAL_SERVER_ERROR] * 2
    refused = broker.send("orders", b"three")
    assert refused.status.code == pb.INTERNAL_SERVER_ERROR
    assert "restart the broker" in refused.status.message
    assert places(broker) == {}
    broker.crash()
    assert broker.send("orders", b"four").status.code == pb.OK
    assert [each.body for each in broker.receive("orders", "billing")[1]] == [b"one", b"two", b"four"]


@pytest.mark.parametrize("what", ["wait_flushed", "append"])
def test_sync_flush(what: str) -> None:
    with InProcessBroker(flushDiskType="SYNC_FLUSH", log_level="critical") as broker:
        prepare(broker)
        broker.store.inject(what, ZeroDivisionError("injected"))
        calls = send_together(broker, b"one", b"two")
        expected = pb.MASTER_PERSISTENCE_TIMEOUT if what == "wait_flushed" else pb.OK
        assert codes(calls) == [expected] * 2
        assert places(broker) == {}


class Hook:
    def before_append(self, messages: Any, peer: str) -> None:
        if messages[0].body == BAD:
            raise ZeroDivisionError("injected")


def test_an_append_hook_that_fails() -> None:
    hook: AppendHook = Hook()
    with InProcessBroker(extensions=Extensions(append_hooks=(hook,)), log_level="critical") as broker:
        prepare(broker)
        calls = send_together(broker, b"one", BAD, b"two")
        assert codes(calls) == [pb.OK, pb.INTERNAL_SERVER_ERROR, pb.OK]
        assert places(broker) == {}


class Interceptor:
    def before(self, call: Any) -> None:
        pass

    def after(self, call: Any, outcome: Any) -> None:
        raise ZeroDivisionError("injected")


def test_an_interceptor_that_fails_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with InProcessBroker(
        extensions=Extensions(interceptors=(Interceptor(),)), log_level="critical"
    ) as broker:
        prepare(broker)
        assert codes(send_together(broker, b"one", b"two")) == [pb.OK] * 2
        assert places(broker) == {}


def test_a_route_that_cannot_be_asked_for(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RouteService, "when_known", once(RouteService.when_known))
    request = rpc.QueryRouteRequest(topic=pb.Resource(name="orders"))
    assert broker.call("QueryRoute", request).status.code == pb.INTERNAL_SERVER_ERROR
    assert broker.call("QueryRoute", request).status.code == pb.OK
    assert places(broker) == {}


def test_a_full_turn_that_fails(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has grown so large that it is appended while it is read."""
    monkeypatch.setattr(send, "_TICK_BYTES", 100)
    broken = whenever(commit_log.encode_record, lambda record, *_: bytes(record.body) == BAD)
    monkeypatch.setattr(commit_log, "encode_record", broken)
    calls = send_together(broker, b"x" * 60, BAD, b"y" * 60, b"z" * 60)
    assert codes(calls) == [pb.OK, pb.INTERNAL_SERVER_ERROR, pb.OK, pb.OK]
    assert places(broker) == {}


def test_receives_of_a_turn(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.send("orders", b"one", b"two")
    monkeypatch.setattr(Taker, "take", once(Taker.take))
    with broker.one_tick():
        calls = [
            broker.begin("ReceiveMessage", receive_request("orders", group, wait_ms=0))
            for group in ("billing", "audit")
        ]
    assert [call.response[0].status.code for call in calls] == [pb.INTERNAL_SERVER_ERROR, pb.OK]
    assert places(broker) == {}


def test_an_edge_that_cannot_finish_a_send(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no other send of the tick along."""
    monkeypatch.setattr(Reply, "set", once(Reply.set))
    calls = send_together(broker, b"one", b"two", b"three")
    assert [call.done for call in calls] == [False, True, True]
    calls[0].cancel()
    assert places(broker) == {}


def test_an_edge_that_cannot_answer_a_receive(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its place is free again, and what it took is there for others."""
    broker.send("orders", b"one")
    with monkeypatch.context() as patched:
        patched.setattr(ReceiveService, "answer", whenever(ReceiveService.answer, lambda *_: True))
        broker.begin("ReceiveMessage", receive_request("orders", "billing", wait_ms=0))
    assert places(broker) == {}
    assert [bytes(each.body) for each in broker.receive("orders", "billing")[1]] == [b"one"]
