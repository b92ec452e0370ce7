"""What the log does not take is not done: neither now nor after a restart."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.app.broker import Broker
from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal import journal as journal_module
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Group, Topic
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request
from store.log.record import PendingRecord, tags_code
from tests.support.brokers.journaled import parts

_LOCAL = CallContext({}, "127.0.0.1:5", None, ("127.0.0.1", 8081))
KEY = QueueKey("g", "t", 0)


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def prepared(process: InProcessBroker) -> None:
    """Topic `t` with five messages, of which group `g` has two in flight."""
    broker, store = process.broker, process.store
    broker.catalog.put_topic(Topic("t", 1, 1))
    broker.catalog.put_group(Group("g", 3))
    store.append([PendingRecord("t", 0, b"x", b"", 1, store.store_host.packed)] * 5)
    state = broker.deliveries.queue(KEY)
    for offset in (0, 1):
        state.restore(InFlight(offset, 1, 1 << 60, 1, str(offset), "me"))
    state.restore_offsets(2, None)
    broker.journaled.deliveries.offsets_changed(state)
    broker.journal.write()


def known(process: InProcessBroker) -> tuple[object, ...]:
    broker = process.broker
    state = broker.deliveries.known(KEY)
    assert state is not None
    topics = {each.name: each for each in broker.catalog.topics()}
    return (
        topics,
        list(broker.catalog.groups()),
        process.store.index.min_offset("t", 0),
        state.position,
        state.consumer_offset,
    )


Change = Callable[[Broker], Coroutine[Any, Any, Any]]


async def done(work: Callable[[], object]) -> None:
    work()


def put_topic(name: str) -> Change:
    return lambda broker: broker.administration.topics.put(TopicConfig(name, 7, 7, 6))


CHANGES: dict[str, Change] = {
    "a new topic": put_topic("new"),
    "a changed topic": put_topic("t"),
    "a deleted topic": lambda broker: done(lambda: broker.administration.topics.delete("t")),
    "a new group": lambda broker: done(lambda: broker.administration.groups.put(Group("new"))),
    "a changed group": lambda broker: done(lambda: broker.administration.groups.put(Group("g", 9))),
    "a deleted group": lambda broker: done(
        lambda: broker.administration.groups.delete("g", clean_offsets=True)
    ),
    "an offset": lambda broker: done(lambda: broker.administration.offset_changes.commit("g", "t", 0, 4)),
    "offsets": lambda broker: broker.administration.offset_changes.reset("g", "t", -1, -1, None),
    "a topic by gRPC": lambda broker: broker.admin.PutTopic(
        admin_pb2.PutTopicRequest(topic=admin_pb2.Topic(name="t", queues=9)), _LOCAL
    ),
    "a group by gRPC": lambda broker: broker.admin.PutGroup(
        admin_pb2.PutGroupRequest(group=admin_pb2.Group(name="new")), _LOCAL
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_cannot_be_journaled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    change = CHANGES[what]
    with InProcessBroker(tmp_path) as process:
        broker = process.broker
        process.do(lambda: prepared(process))
        before = known(process)
        told: list[str] = []
        monkeypatch.setattr(broker.registration, "topic_changed", told.append)
        with monkeypatch.context() as patched:
            patched.setattr(process.store, "append", full)
            with pytest.raises((ServiceError, RpcError), match="could not be written to the log"):
                process.run(change(broker))
            process.advance(0.01)
        assert known(process) == before
        assert len(told) != 1 or "deleted" in what, "who was told of it is told again"
        process.run(change(broker))
        after = known_or_none(process)
        assert after != before
    with InProcessBroker(tmp_path) as process:
        assert known_or_none(process) == after


def known_or_none(process: InProcessBroker) -> tuple[object, ...] | None:
    return known(process) if process.broker.deliveries.known(KEY) is not None else None


@pytest.mark.parametrize("what", ["a deleted topic", "a deleted group", "an offset"])
def test_a_snapshot_that_is_due_does_not_bring_back_what_was_removed(tmp_path: Path, what: str) -> None:
    with InProcessBroker(tmp_path) as process:
        broker = process.broker
        process.do(lambda: prepared(process))
        process.do(broker.journal.begin_snapshot)
        process.run(CHANGES[what](broker))
        after = known_or_none(process)
        process.advance(0.1)  # its parts are written in the next ticks
        assert parts(process.store)[-1].snapshot.parts, "the last one was written"
        broker.journal.write_snapshot = lambda: None  # type: ignore[method-assign]
    with InProcessBroker(tmp_path) as process:
        assert known_or_none(process) == after


def test_a_snapshot_that_cannot_be_written_fails_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InProcessBroker(tmp_path) as process:
        broker = process.broker
        append, refused = process.store.append, []

        def takes_no_snapshot(records: Sequence[PendingRecord]) -> object:
            if any(tags_code("snapshot") == each.tags_code for each in records):
                refused.append(1)
                full()
            return append(records)

        with monkeypatch.context() as patched:
            patched.setattr(process.store, "append", takes_no_snapshot)
            for number in range(3):
                process.do(broker.journal.begin_snapshot)
                process.do(partial(broker.administration.groups.put, Group(f"g{number}")))
                process.advance(0.01)
            assert len(refused) == 1, "tried again after a while"
            assert broker.catalog.group("g2") is not None


def test_a_full_disk_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with InProcessBroker(tmp_path, log_level="info") as process:
        broker = process.broker
        process.do(lambda: prepared(process))
        with monkeypatch.context() as patched:
            patched.setattr(process.store, "append", full)
            for _ in range(5):
                process.do(lambda: broker.journaled.deliveries.offsets_changed(broker.deliveries.queue(KEY)))
                process.advance(0.01)
        process.advance(0.6)  # it is not tried before
        process.do(lambda: broker.journaled.deliveries.offsets_changed(broker.deliveries.queue(KEY)))
        process.advance(0.01)

    told = "".join(capsys.readouterr())
    assert told.count("changes cannot be journaled") == 1
    assert told.count("changes are journaled again") == 1
    assert "Traceback" not in told


def test_the_admin_service_leaves_what_it_does_not_name(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as process:
        broker = process.broker
        process.do(lambda: broker.catalog.put_topic(Topic("t", 1, 1, 4, order=True)))
        process.do(lambda: broker.catalog.put_group(Group("g", 3, consume_enabled=False)))
        process.create_topic("t", 3)
        process.create_group("g", 5)
        topic, group = broker.catalog.topic("t"), broker.catalog.group("g")
        assert topic is not None
        assert group is not None
        assert (topic.permission, topic.order, topic.read_queues) == (4, True, 3)
        assert (group.consume_enabled, group.retry_max_times) == (False, 5)


def test_offsets_of_many_queues_are_cloned_whole_or_not_at_all() -> None:
    """More than a record of the journal holds; the second append fails."""
    topics = ("t", "u")
    with InProcessBroker() as process:
        for topic in topics:
            process.create_topic(topic, 1000)
            process.create_group("g")
            process.run(process.broker.administration.offset_changes.reset("g", topic, -1, -1, None))

        def cloned() -> set[QueueKey]:
            return {each.key for each in process.broker.deliveries.queues() if each.key.group == "h"}

        def clone() -> None:
            process.do(lambda: process.broker.administration.offset_changes.clone("g", "h", topics))

        process.store.inject("append", OSError(28, "No space left on device"), after=1)
        with contextlib.suppress(ServiceError):
            clone()
        before = cloned()
        process.crash()
        assert cloned() == before
        process.store.inject("append", OSError(28, "No space left on device"))
        with pytest.raises(ServiceError, match="is not done"):
            clone()
        process.crash()
        assert cloned() == before
        clone()
        process.crash()
        assert len(cloned()) == 2000


@pytest.mark.parametrize("what", ["topic", "group"])
def test_what_is_made_on_first_use_is_journaled_or_not_made(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record has no room for the change, and cannot be appended to make some."""
    with InProcessBroker(lakeAutoCreateTopics="true") as broker:
        catalog = broker.broker.catalog

        def use() -> bool:
            if what == "topic":
                return broker.send("fresh", b"x").status.code == pb.OK
            return broker.receive("there", "fresh")[0] == pb.OK

        def known() -> object:
            return catalog.topic("fresh") if what == "topic" else catalog.group("fresh")

        broker.create_topic("there")
        broker.create_group("g")
        broker.send("there", b"1")
        monkeypatch.setattr(journal_module, "EVENTS_A_RECORD", 1)
        broker.store.inject("append", OSError(28, "No space left on device"))
        with broker.one_tick():
            broker.begin_receive("there", "g")
            call = (
                broker.begin("SendMessage", send_request(message("fresh", b"x")))
                if what == "topic"
                else broker.begin_receive("there", "fresh")
            )
        status = call.response[0].status if what == "group" else call.response.status
        assert status.code == pb.INTERNAL_SERVER_ERROR
        assert known() is None
        monkeypatch.undo()
        broker.store.heal()
        broker.advance(6)
        assert use()
        broker.crash()
        catalog = broker.broker.catalog
        assert known() is not None


@pytest.mark.parametrize("put", [Topic("t", 7, 7), Group("g", 9), Topic("new", 1, 1), Group("new")])
def test_a_change_that_another_part_refuses_is_not_journaled(tmp_path: Path, put: Topic | Group) -> None:
    """It is refused behind the journal, which has noted it."""

    def refuse(_: object) -> None:
        raise ServiceError(Reason.FORBIDDEN, "by the test")

    def change(broker: Broker) -> None:
        if isinstance(put, Topic):
            broker.catalog.put_topic(put)
        else:
            broker.catalog.put_group(put)

    with InProcessBroker(tmp_path) as process:
        broker = process.broker
        process.do(lambda: prepared(process))
        before = known(process)
        told: list[str] = []
        broker.catalog.listen(
            topic_changed=refuse, group_changed=refuse, rolled_back=lambda topic, _: told.append(topic)
        )
        with pytest.raises(ServiceError, match="by the test"):
            process.do(lambda: change(broker))
        process.advance(0.01)
        assert (known(process), len(told)) == (before, 1)
        process.crash()
        assert known(process)[:2] == before[:2]


def test_the_limit_of_messages_is_none_of_the_journal() -> None:
    """Else nothing could be delivered, or deleted, where only small messages are taken."""
    with InProcessBroker(maxMessageSize="100") as process:
        process.create_topic("orders")
        process.create_group("billing")
        process.send("orders", *[b"x"] * 32)
        code, messages = process.receive("orders", "billing", batch=32)
        assert (code, len(messages)) == (pb.OK, 32)
        process.do(partial(process.broker.administration.groups.delete, "billing", clean_offsets=True))
        process.crash()
        assert process.broker.catalog.group("billing") is None
