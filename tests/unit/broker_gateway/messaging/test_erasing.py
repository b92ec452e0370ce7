"""Erasing: what is found, that nobody gets it, and that it lasts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator

import pytest

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.journal.journal import Journal
from broker_gateway.messaging import erasing, erasure_search
from broker_gateway.messaging.erasing import Asked, Erasure
from broker_gateway.messaging.message_search import Wanted
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.transactions import Resolution
from broker_gateway.migration.exchange import export_to_rocketmq
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_pb.lakebroker.journal.v1.journal_pb2 import Batch
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.logs import pending
from store.errors import ErasedError
from store.log.erased import read_erased
from store.log.record import Record
from store.log_source import FolderLog
from tests.support.brokers.journaled import batches


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        for topic in ("t", "u"):
            broker.create_topic(topic)
        broker.create_group("g", 2)
        yield broker


def erase(broker: InProcessBroker, topic: str = "", dry_run: bool = False, **asked: object) -> Erasure:
    wanted = Asked(topic, **asked)  # type: ignore[arg-type]
    return broker.run(broker.broker.parts.erasing.erase(wanted, dry_run=dry_run))


def send(broker: InProcessBroker, *bodies: bytes, topic: str = "t", **system: object) -> list[str]:
    answer = broker.send(topic, *bodies, **system)
    assert answer.status.code == pb.OK, answer.status.message
    return [each.message_id for each in answer.entries]


def bodies(broker: InProcessBroker, topic: str = "t", group: str = "g") -> list[bytes]:
    """Received and acknowledged."""
    found: list[pb.Message] = []
    while some := broker.receive(topic, group)[1]:
        assert broker.ack(topic, group, *some).status.code == pb.OK
        found += some
    return [each.body for each in found]


def records(broker: InProcessBroker, topic: str, queue_id: int = 0) -> list[Record]:
    offsets, sizes, _ = broker.store.index.every_entry(topic, queue_id, 0, 1000)
    found = [broker.store.record_to_erase(int(at)) for at, size in zip(offsets, sizes, strict=True) if size]
    return [each for each in found if each is not None]


def refused(broker: InProcessBroker, topic: str = "", **asked: object) -> ServiceError:
    with pytest.raises(ServiceError) as error:
        erase(broker, topic, **asked)
    return error.value


def test_what_has_the_key_is_erased_and_the_others_are_received(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a", "other"])
    send(broker, b"2", keys=["b"])
    send(broker, b"3", keys=["other", "a"])
    send(broker, b"4", keys=["aa"])
    send(broker, b"5", topic="u", keys=["a"])
    done = erase(broker, "t", keys=["a", "absent"])
    assert [(each.topic, each.keys) for each in done.found] == [("t", ("a",)), ("t", ("a",))]
    assert done.new_records == 2
    assert bodies(broker) == [b"2", b"4"]
    assert bodies(broker, "u") == [b"5"]


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "compiled"])
def test_many_between_others_are_passed_over(broker: InProcessBroker, compiled: bool) -> None:
    if compiled:
        assert broker.broker.load_compiled()
    sent = [b"%d" % number for number in range(300)]
    for number, body in enumerate(sent):
        send(broker, body, keys=["gone" if number % 3 else f"k{number}"])
    assert erase(broker, "t", keys=["gone"]).new_records == 200
    assert bodies(broker) == sent[::3]
    assert bodies(broker, group="another") == sent[::3]


@pytest.mark.parametrize("keys", [["a" * 200], ["é"], ["12345678"], ["x12345678"], ["1"]])
def test_keys_of_any_length(broker: InProcessBroker, keys: list[str]) -> None:
    send(broker, b"gone", keys=keys)
    send(broker, b"stays", keys=["y" + each[1:] for each in keys if len(each) > 1] or ["2"])
    assert erase(broker, "t", keys=keys).new_records == 1
    assert bodies(broker) == [b"stays"]


def test_messages_by_id_of_any_topic(broker: InProcessBroker) -> None:
    first, _ = send(broker, b"1", b"2")
    (other,) = send(broker, b"3", topic="u")
    assert erase(broker, "t", message_ids=[first, other]).new_records == 1
    assert erase(broker, message_ids=[first, other]).new_records == 1
    assert bodies(broker) == [b"2"]
    assert bodies(broker, "u") == []


def test_of_a_message_that_another_broker_has_traces_alone_are_erased(broker: InProcessBroker) -> None:
    for topic, each in (("RMQ_SYS_TRACE_TOPIC", "x gone a"), ("RMQ_SYS_TRACE_TOPIC", "x"), ("t", "gone")):
        broker.store.append([pending(topic, b"1", 0, KEYS=each, UNIQ_KEY="gone" if topic == "t" else "T")])
    assert [each.topic for each in erase(broker, traced=["gone"]).found] == ["RMQ_SYS_TRACE_TOPIC"]
    assert bodies(broker) == [b"1"]
    assert "10001 traced_ids" in refused(broker, traced=["x"] * 10_001).message


@pytest.mark.parametrize("asked", ["key", "id", "place"])
def test_traces_of_them_go_with_them_whatever_else_they_tell_of(broker: InProcessBroker, asked: str) -> None:
    """As RocketMQ's Java client sends them: ids and keys of what it traces, of several messages at once, are keys of the trace."""
    (gone,) = send(broker, b"1", keys=["a"])
    (other,) = send(broker, b"2", keys=["b"])
    keys = {
        "RMQ_SYS_TRACE_TOPIC": [f"{other} {gone} a", f"{gone}", f"{other} b", "a"],
        "rmq_sys_TRACE_DATA_x": [f"a {gone}"],
        "t": [gone],  # a message that refers to the other
    }
    for topic, of_records in keys.items():
        for number, each in enumerate(of_records):
            broker.store.append([pending(topic, b"x", 0, KEYS=each, UNIQ_KEY=f"{topic}-{number}")])
    trace = pending("%RETRY%g", b"x", 0, KEYS=gone, UNIQ_KEY="copy", RETRY_TOPIC="RMQ_SYS_TRACE_TOPIC")
    broker.store.append([trace])
    if asked == "key":
        done = erase(broker, "t", keys=["a"])
    elif asked == "id":
        done = erase(broker, message_ids=[gone])
    else:
        (first, *_) = records(broker, "t")
        done = erase(broker, records=[(broker.store.broker, broker.store.log_id, [first.physical_offset])])
    found = [(each.topic, each.message_id) for each in done.found]
    assert found == [
        ("t", gone),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC-0"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC-1"),
        ("rmq_sys_TRACE_DATA_x", "rmq_sys_TRACE_DATA_x-0"),
        ("%RETRY%g", "copy"),
    ]


def test_records_by_where_they_stand_with_their_copies(broker: InProcessBroker) -> None:
    send(broker, b"1", b"2")
    first = records(broker, "t")[0]
    store = broker.store
    elsewhere = ("another", "b" * 32, [5, 7])
    done = erase(broker, records=[(store.broker, store.log_id, [first.physical_offset]), elsewhere])
    assert [each.physical_offset for each in done.found] == [first.physical_offset]
    assert done.new_records == 1
    assert bodies(broker) == [b"2"]
    wrong = refused(broker, records=[(store.broker, store.log_id, [first.physical_offset + 1])])
    assert wrong.reason is Reason.BAD_REQUEST
    assert str(first.physical_offset + 1) in wrong.message


def test_the_broker_s_journal_stays(broker: InProcessBroker) -> None:
    journal = records(broker, "rmq_sys_lakebroker_journal")[0]
    store = broker.store
    wrong = refused(broker, records=[(store.broker, store.log_id, [journal.physical_offset])])
    assert "journal" in wrong.message


def test_a_dry_run_changes_nothing(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    end = broker.store.max_offset
    done = erase(broker, "t", dry_run=True, keys=["a"])
    assert (len(done.found), done.new_records) == (1, 1)
    assert broker.store.max_offset == end
    assert bodies(broker) == [b"1"]


def test_the_same_call_again_has_the_same_report(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    first, end = erase(broker, "t", keys=["a"]), broker.store.max_offset
    again = erase(broker, "t", keys=["a"])
    assert (first.found, first.new_records, again.new_records) == (again.found, 1, 0)
    assert broker.store.max_offset == end


@pytest.mark.parametrize("again", ["crash", "restart"])
def test_it_lasts(broker: InProcessBroker, again: str) -> None:
    for number in range(6):
        send(broker, b"%d" % number, keys=["a" if number % 2 else "b"])
    erase(broker, "t", keys=["a"])
    for _ in range(2):  # from the record, then from a snapshot
        getattr(broker, again)()
        assert len(broker.store.erased.places) == 3
        assert bodies(broker, group=f"g{broker.store.max_offset}") == [b"0", b"2", b"4"]


def test_readers_by_path_are_told_before_the_answer_and_at_a_start(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    erase(broker, "t", keys=["a"])
    offsets = broker.store.erased.offsets.tolist()
    assert len(offsets) == 1
    log_id = broker.store.log_id
    assert read_erased(broker.root, [log_id]).tolist() == offsets
    log = FolderLog(broker.root)
    assert log.describe().erased_version == broker.store.erased.version
    log.close()
    broker.stop()
    (broker.root / "erased").write_bytes(b"damage")
    broker.restart()
    assert read_erased(broker.root, [log_id]).tolist() == offsets


def test_a_side_file_that_cannot_be_written_fails_the_call_and_the_next_one_mends_it(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, b"1", keys=["a"])

    def full() -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(broker.store, "publish_erased", full)
        assert "No space left" in refused(broker, "t", keys=["a"]).message
    assert bodies(broker) == []
    assert erase(broker, "t", keys=["a"]).new_records == 0
    assert len(read_erased(broker.root, [broker.store.log_id])) == 1


def test_what_the_journal_does_not_take_is_not_done(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    broker.store.inject("append", OSError(28, "No space left on device"))
    assert refused(broker, "t", keys=["a"]).reason is Reason.INTERNAL_SERVER_ERROR
    assert bodies(broker) == [b"1"]
    assert erase(broker, "t", keys=["a"]).new_records == 1


@pytest.mark.parametrize("between", [0, 600], ids=["side by side", "far apart"])
def test_what_becomes_of_an_erased_delivery_names_no_message(broker: InProcessBroker, between: int) -> None:
    """The lake has forgotten its id by then; those of others are said."""
    send(broker, b"gone", keys=["gone"])
    for _ in range(between):
        send(broker, b"passed over")
    (stays,) = send(broker, b"stays", keys=["stays"])
    broker.create_group("h", 2)
    received = [each for _ in range(between + 2) for each in broker.receive("t", "h")[1]]
    assert len(received) == between + 2
    erase(broker, "t", keys=["gone"])
    written = len(batches(broker.store))
    broker.ack("t", "h", received[0], received[-1])
    broker.settle()
    acked = [
        (offset, message_id)
        for batch in batches(broker.store)[written:]
        for queue in batch.queues
        for events in queue.events
        for offset, message_id in zip(events.queue_offset, events.message_id, strict=True)
    ]
    assert acked == [(0, ""), (between + 1, stays)]


def test_a_receipt_handle_still_settles_and_a_redelivery_is_skipped(broker: InProcessBroker) -> None:
    send(broker, b"1", b"2", keys=["a"])
    send(broker, b"3")
    first, second, third = broker.receive("t", "g", batch=3, invisible_ms=10_000)[1]
    erase(broker, "t", keys=["a"])
    assert broker.ack("t", "g", first).status.code == pb.OK
    broker.advance(11)
    (again,) = broker.receive("t", "g", batch=3)[1]
    assert again.body == third.body == b"3"
    assert second.body == b"2"
    assert broker.ack("t", "g", again).status.code == pb.OK
    assert broker.committed("t", "g") == 3


def test_no_dead_letter_is_made_of_it_and_those_there_are_go(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    send(broker, b"2", keys=["a", "later"])
    moved, waits = broker.receive("t", "g", batch=2, invisible_ms=10_000)[1]
    request = rpc.ForwardMessageToDeadLetterQueueRequest(
        topic=pb.Resource(name="t"),
        group=pb.Resource(name="g"),
        receipt_handle=moved.system_properties.receipt_handle,
        message_id=moved.system_properties.message_id,
    )
    assert broker.call("ForwardMessageToDeadLetterQueue", request).status.code == pb.OK
    done = erase(broker, "t", keys=["a"])
    assert sorted(each.topic for each in done.found) == ["%DLQ%g", "t", "t"]
    broker.create_group("operators")
    assert bodies(broker, "%DLQ%g", "operators") == []
    request.receipt_handle = waits.system_properties.receipt_handle
    broker.call("ForwardMessageToDeadLetterQueue", request)
    assert len(records(broker, "%DLQ%g")) == 1
    assert broker.committed("t", "g") == 2


def test_a_message_that_waits_for_its_time_never_comes(broker: InProcessBroker) -> None:
    due = timestamp(broker.clock.now_ms + 60_000)
    for key in ("a", "b"):
        send(broker, key.encode(), keys=[key], message_type=pb.DELAY, delivery_timestamp=due)
    timers = broker.broker.parts.timers
    assert (timers.count, len(erase(broker, "t", keys=["a"]).found), timers.count) == (2, 1, 1)
    left = timers.bytes
    broker.crash()
    timers = broker.broker.parts.timers
    assert (timers.count, timers.bytes) == (1, left)
    broker.jump(120)
    assert bodies(broker) == [b"b"]
    assert (timers.count, timers.bytes) == (0, 0)


def test_a_message_that_waited_is_erased_with_its_record_of_the_timer(broker: InProcessBroker) -> None:
    due = timestamp(broker.clock.now_ms + 60_000)
    send(broker, b"a", keys=["a"], message_type=pb.DELAY, delivery_timestamp=due)
    broker.jump(120)
    assert len(records(broker, "t")) == 1
    assert sorted(each.topic for each in erase(broker, "t", keys=["a"]).found) == ["rmq_sys_wheel_timer", "t"]
    assert bodies(broker) == []
    for _ in range(2):  # the copy that settled it counts, erased as it is
        broker.crash()
        broker.jump(120)
        assert len(records(broker, "t")) == 1


def half(broker: InProcessBroker, key: str) -> str:
    return send(broker, key.encode(), keys=[key], message_type=pb.TRANSACTION)[0]


def end(broker: InProcessBroker, transaction_id: str) -> pb.Code:
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name="t"),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=pb.COMMIT,
        source=pb.SOURCE_CLIENT,
    )
    code: pb.Code = broker.call("EndTransaction", request).status.code
    return code


def test_a_half_is_as_one_that_is_not_there(broker: InProcessBroker) -> None:
    gone, stays = half(broker, "a"), half(broker, "b")
    transactions = broker.broker.parts.transactions
    size = transactions.bytes
    assert [each.topic for each in erase(broker, "t", keys=["a"]).found] == ["RMQ_SYS_TRANS_HALF_TOPIC"]
    assert transactions.count == 1
    assert 0 < transactions.bytes < size
    assert end(broker, gone) == pb.INVALID_TRANSACTION_ID
    broker.crash()
    assert broker.broker.parts.transactions.count == 1
    assert end(broker, gone) == pb.INVALID_TRANSACTION_ID
    assert end(broker, stays) == pb.OK
    assert bodies(broker) == [b"b"]


def test_a_half_that_is_being_committed_is_caught_behind_it(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = half(broker, "a")
    transactions, append = broker.broker.parts.transactions, Journal.append_first

    def committed_at_this_moment(journal: Journal, batches: Iterable[Batch]) -> None:
        if transactions.count:
            transactions.end("t", transaction, Resolution.COMMIT, lambda outcome: None)
        append(journal, batches)

    monkeypatch.setattr(Journal, "append_first", committed_at_this_moment)
    found = erase(broker, "t", keys=["a"]).found
    assert len(records(broker, "t")) == 1
    assert [each.topic for each in found] == ["RMQ_SYS_TRANS_HALF_TOPIC", "t"]
    assert bodies(broker) == []


def test_it_is_not_found_any_more(broker: InProcessBroker) -> None:
    (gone,) = send(broker, b"1", keys=["a", "both"])
    send(broker, b"2", keys=["both"])
    erase(broker, "t", message_ids=[gone])
    topic = broker.broker.catalog.topic("t")
    assert topic is not None
    queries = broker.broker.parts.message_queries

    def found(**wanted: str) -> list[bytes]:
        page = broker.run(queries.page(topic, Wanted(**wanted), 10))  # type: ignore[arg-type]
        return [bytes(each.record.body) for each in page.messages]

    assert (found(key="both"), found(key="a"), found(message_id=gone), found()) == ([b"2"], [], [], [b"2"])


def test_its_time_and_place_are_known_still(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    stored_ms = broker.store.stored_ms("t", 0, 0)
    erase(broker, "t", keys=["a"])
    assert stored_ms
    assert broker.store.stored_ms("t", 0, 0) == stored_ms
    assert broker.broker.administration.runtime.table()["earliestMessageTimeStamp"] != "-1"
    offset = broker.store.erased.offsets[0]
    with pytest.raises(ErasedError, match=str(offset)):
        broker.store.record(int(offset), 100)


@pytest.mark.parametrize(
    ("topic", "asked", "said"),
    [
        ("t", {}, "nothing is named"),
        ("", {"keys": ["a"]}, "keys are of a topic"),
        ("t", {"keys": ["a b"]}, "'a b' has a space"),
        ("t", {"keys": [""]}, "empty"),
        ("t", {"keys": [str(n) for n in range(1001)]}, "1001 keys, at most 1000"),
        ("t", {"message_ids": ["x"] * 10_001}, "10001 message_ids, at most 10000"),
        ("", {"records": [("b", "l", [-1])]}, "-1 is negative"),
        ("", {"records": [("", "l", [1])]}, "no broker or log_id"),
        ("", {"records": [("b", "l", range(20_001))]}, "20001 records, at most 20000"),
    ],
)
def test_what_cannot_be_asked_for(
    broker: InProcessBroker, topic: str, asked: dict[str, object], said: str
) -> None:
    error = refused(broker, topic, **asked)
    assert error.reason is Reason.BAD_REQUEST
    assert said in error.message


@pytest.mark.parametrize("piece", [1 << 20, 4096])
@pytest.mark.parametrize("bound", ["MOST_FOUND", "MOST_BYTES"])
def test_more_than_a_call_finds_is_found_by_calls_that_go_on(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, bound: str, piece: int
) -> None:
    monkeypatch.setattr(erasing, "_PIECE", piece)
    monkeypatch.setattr(erasing, "_TAIL", piece // 4)
    for number in range(40):
        send(broker, b"%d" % number, keys=["a" if number % 2 else "b"])
    monkeypatch.setattr(erasure_search, bound, 3)
    for first in (True, False):  # what was erased before counts as little
        start, pages = 0, []
        while True:
            pages.append(erase(broker, "t", keys=["a"], start=start))
            assert pages[-1].new_records == (len(pages[-1].found) if first else 0)
            assert 0 < len(pages[-1].found) <= 3 or pages[-1].stopped_at is None
            if pages[-1].stopped_at is None:
                break
            assert pages[-1].stopped_at > start
            start = pages[-1].stopped_at
        places = [each.physical_offset for page in pages for each in page.found]
        assert len(places) == 20
        assert places == sorted(set(places))
        assert len(pages) > 6
    assert bodies(broker) == [b"%d" % number for number in range(0, 40, 2)]


def test_a_long_log_is_looked_through_by_calls_of_some_seconds(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("_LOOK_S", 0.0), ("_PIECE", 4096), ("_TAIL", 0)):
        monkeypatch.setattr(erasing, name, value)
    for number in range(40):
        send(broker, b"%d" % number, keys=["a" if number % 2 else "b"])
    for dry in (True, False):
        start, pages = 0, []
        while not pages or pages[-1].stopped_at is not None:
            pages.append(erase(broker, "t", dry, keys=["a"], start=start))
            before, start = start, pages[-1].stopped_at or start
            assert start > before or pages[-1].stopped_at is None
        assert sum(each.new_records for each in pages) == 20
        assert len(pages) > 2
    assert bodies(broker) == [b"%d" % number for number in range(0, 40, 2)]


def test_a_call_that_goes_on_finds_copies_of_what_it_names_by_place(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker, b"1", b"2", b"3")
    for message in broker.receive("t", "g", batch=3)[1]:
        broker.dead_letter("t", "g", message)
    places = [each.physical_offset for each in records(broker, "t")]
    monkeypatch.setattr(erasure_search, "MOST_FOUND", 2)
    named = [(broker.store.broker, broker.store.log_id, places)]
    first = erase(broker, records=named)
    assert [each.topic for each in first.found] == ["t"] * 3 + ["%DLQ%g"] * 2
    assert first.stopped_at is not None
    second = erase(broker, records=named, start=first.stopped_at)
    assert [each.topic for each in second.found] == ["%DLQ%g"]
    assert (second.new_records, second.stopped_at) == (1, None)
    assert erase(broker, records=named, start=None).found == []


def test_where_a_call_goes_on_may_be_anywhere(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    (place,) = (each.physical_offset for each in records(broker, "t"))
    for start, found in ((place - 1, 1), (place, 1), (place + 1, 0), (1 << 62, 0), (0, 1)):
        done = erase(broker, "t", dry_run=True, keys=["a"], start=start)
        assert (len(done.found), done.stopped_at) == (found, None), start
    assert "-1 to go on from is negative" in refused(broker, "t", keys=["a"], start=-1).message


def test_more_than_the_broker_may_know_of(broker: InProcessBroker) -> None:
    broker.run(broker.broker.configuration.apply({"lakeMaxErasedRecords": "2"}))
    for _ in range(2):
        send(broker, b"1", keys=["a"])
    send(broker, b"2", keys=["b"])
    erase(broker, "t", keys=["a"])
    error = refused(broker, "t", keys=["b"])
    assert error.reason is Reason.TOO_MANY_REQUESTS
    assert "lakeMaxErasedRecords" in error.message
    assert bodies(broker) == [b"2"]
    assert erase(broker, "t", keys=["a"]).new_records == 0, "what is erased may be asked about"
    broker.run(broker.broker.configuration.apply({"lakeMaxErasedRecords": "3"}))
    assert erase(broker, "t", keys=["b"]).new_records == 1


def test_a_lite_topic_has_it_no_more(broker: InProcessBroker) -> None:
    topic = admin_pb2.Topic(name="chat", queues=1, accept_message_types=["LITE"])
    broker.call("PutTopic", admin_pb2.PutTopicRequest(topic=topic))
    for key in ("a", "b"):
        send(broker, b"1", topic="chat", keys=[key], message_type=pb.LITE, lite_topic="s-1")
    erase(broker, "chat", keys=["a"])
    sizes = broker.store.index.entries("%LMQ%$chat$s-1", 0, 0, 2).sizes
    assert (sizes > 0).tolist() == [False, True]


def test_pieces_of_the_log_are_looked_through_one_by_one(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erasing, "_PIECE", 4096)
    monkeypatch.setattr(erasing, "_TAIL", 1024)
    for number in range(100):
        send(broker, b"x" * 500, keys=["a" if number % 10 == 0 else "b"])
    assert erase(broker, "t", keys=["a"]).new_records == 10


def test_a_group_in_order_goes_on_behind_it(broker: InProcessBroker) -> None:
    broker.create_group("fifo", fifo=True)
    for key in ("a", "b", "a", "c"):
        send(broker, key.encode(), keys=[key], message_group="m", message_type=pb.FIFO)
    (held,) = broker.receive("t", "fifo", batch=1)[1]
    erase(broker, "t", keys=["a"])
    broker.crash()
    assert broker.ack("t", "fifo", held).status.code == pb.OK
    assert bodies(broker, group="fifo") == [b"b", b"c"]
    assert broker.committed("t", "fifo") == 4


def test_a_filter_takes_the_others(broker: InProcessBroker) -> None:
    for number in range(6):
        send(broker, b"%d" % number, tag="x", keys=["a" if number % 2 else "b"])
    erase(broker, "t", keys=["a"])
    by_sql = pb.FilterExpression(type=pb.SQL, expression="TAGS = 'x'")
    for group, asked in (("tagged", "x"), ("sql", by_sql)):
        found = broker.receive("t", group, filter=asked)[1]
        assert [each.body for each in found] == [b"0", b"2", b"4"]


def test_what_expires_is_not_held_for_it(broker: InProcessBroker) -> None:
    due = timestamp(broker.clock.now_ms + 3_600_000)
    send(broker, b"a", keys=["a"], message_type=pb.DELAY, delivery_timestamp=due)
    erase(broker, "t", keys=["a"])
    timers = broker.broker.parts.timers
    assert timers.pending.below(broker.store.max_offset, 10) == []
    assert timers.carry_forward(broker.store.max_offset) == 0


def test_a_real_broker_is_not_handed_what_is_erased(broker: InProcessBroker) -> None:
    send(broker, b"1", keys=["a"])
    erase(broker, "t", keys=["a"])
    broker.stop()
    with pytest.raises(ErasedError, match=r"1 record of the log is erased.*--with-erased"):
        export_to_rocketmq(broker.root)
    assert export_to_rocketmq(broker.root, with_erased=True)
    broker.restart()


def test_how_long_the_log_has_them(broker: InProcessBroker) -> None:
    broker.restart(fileReservedTime="48", deleteWhen="04;05")
    send(broker, b"first", keys=["a"])
    while broker.store.max_offset < 1 << 20:
        send(broker, b"x" * 100_000)
    send(broker, b"last", keys=["a"])
    done = erase(broker, "t", keys=["a"])
    first, last = (each.physical_offset for each in done.found)
    assert done.kept_until_ms(last) == 0, "its segment is being written to"
    written_s = broker.store.segments[0].path.stat().st_mtime
    until_s = done.kept_until_ms(first) / 1000
    assert 48 <= (until_s - written_s) / 3600 <= 48 + 25
    assert time.localtime(until_s - 3600).tm_hour in (4, 5)


def test_an_erasure_that_nobody_waits_for_any_more_is_done_to_its_end(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or timers would stay pending that the journal says are erased, and no later call would find anything new."""
    due = timestamp(broker.clock.now_ms + 3_600_000)
    send(broker, b"a", keys=["a"], message_type=pb.DELAY, delivery_timestamp=due)
    at_work, timers = broker.broker.parts.erasing, broker.broker.parts.timers
    written, append = asyncio.Event(), Journal.append_first

    def write(journal: Journal, batches: Iterable[Batch]) -> None:
        append(journal, batches)
        written.set()

    monkeypatch.setattr(Journal, "append_first", write)

    async def left() -> None:
        call = asyncio.create_task(at_work.erase(Asked("t", keys=["a"])))
        await written.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(ServiceError, match="being done already"):
            await at_work.erase(Asked("t", keys=["a"]))

    broker.run(left())
    assert timers.pending.below(broker.store.max_offset, 10) == []
    assert erase(broker, "t", keys=["a"]).new_records == 0
