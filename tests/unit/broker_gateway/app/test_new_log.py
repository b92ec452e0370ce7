"""A start where the lake has more of the log than there is: a new log, and nothing is doubled or lost."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.app import new_log
from broker_gateway.app.gauges import gauges
from broker_gateway.delivery.lake_only import LakeOnly
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.replay import records_from
from broker_gateway.lake.queue_ends import queue_ends
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.metadata.names import JOURNAL_TOPIC
from broker_gateway.runtime.errors import StartError
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.crash_image import copy_at_rest
from store import message_store
from store.index.time_search import BoundaryType
from store.log.commit_log import CommitLog
from store.message_store import MessageStore
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from tests.support.brokers.with_lake import LakeBroker
from tests.support.lakes.checks import rows
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.maintained import reput

FAR = 3_000_000
KEY = QueueKey("billing", "orders", 0)


def bodies(broker: InProcessBroker, group: str = "billing", settle: bool = True) -> list[str]:
    """What can be received, in the order of the queue."""
    found: list[str] = []
    while messages := broker.receive("orders", group)[1]:
        found += [each.body.decode() for each in messages]
        if settle:
            broker.ack("orders", group, *messages)
    return found


def send(broker: InProcessBroker, begin: int, end: int) -> None:
    for number in range(begin, end):
        broker.send("orders", b"%d" % number, keys=[f"k{number}"])


def numbers(begin: int, end: int) -> list[str]:
    return [str(number) for number in range(begin, end)]


def events(broker: InProcessBroker, kind: journal_pb2.EventKind) -> list[int]:
    """Queue offsets of the journal's events of a kind."""
    return [
        offset
        for _, record in records_from(broker.store, JOURNAL_TOPIC, 0, 0)
        for change in journal_pb2.Batch.FromString(bytes(record.body)).queues
        for each in change.events
        if each.kind == kind
        for offset in each.queue_offset
    ]


class Crash(BaseException):
    """The reput's end."""


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A folder with what `lose_the_end` leaves, the lake beside the store; id and end of the log."""
    folder = tmp_path_factory.mktemp("lost")
    return (folder, *lose_the_end(folder, str(folder / "lake")))


@pytest.fixture
def end_lost(lost: tuple[Path, str, int], tmp_path: Path) -> tuple[str, int]:
    """That in the test's own folder."""
    folder, former, end = lost
    copy_folder(folder, tmp_path / "copy")
    for each in (tmp_path / "copy").iterdir():
        each.rename(tmp_path / each.name)
    return former, end


def lose_the_end(
    folder: Path, location: str, wanted: Wanted = EVERYTHING, crash_behind: str = ""
) -> tuple[str, int]:
    """A store with an older copy in its place: 20 messages, 5 of them settled; the lake has 60, 9 of them
    settled. Id and end of its log. The reput may crash between two tables of the batch that has the others."""

    def after_step(step: str) -> None:
        if step == crash_behind:
            raise Crash

    with InProcessBroker(folder) as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        send(broker, 0, 20)
        settled = broker.receive("orders", "billing", batch=5)[1]
        broker.ack("orders", "billing", *settled)
        broker.stop()
        shutil.copytree(broker.root, folder / "older")
        if crash_behind:
            reput(broker.root, location, wanted=wanted)
        broker.restart()
        send(broker, 20, 60)
        broker.create_topic("later")
        broker.send("later", b"in the lake alone")
        settled = broker.receive("orders", "billing", batch=5)[1]
        broker.ack("orders", "billing", *settled[:4])
        broker.create_group("afterwards")
        broker.flush()
        with contextlib.suppress(Crash):
            reput(broker.root, location, wanted=wanted, after_step=after_step)
        broker.stop()
        shutil.rmtree(broker.root)
        (folder / "older").rename(broker.root)
        broker.restart()
        return broker.store.log_id, broker.store.max_offset


def assert_exact(lake: Path) -> None:
    """No row key twice, and no place in a queue, whichever log it was in."""
    places = rows(lake, "consume_queue").to_pylist()
    for key in (("log_id", "physical_offset"), ("topic", "queue_id", "queue_offset")):
        counts = Counter(tuple(row[name] for name in key) for row in places)
        assert [place for place, count in counts.items() if count > 1] == []


def test_a_store_that_lost_its_end_goes_on_above_the_lake(tmp_path: Path, end_lost: tuple[str, int]) -> None:
    lake = tmp_path / "lake"
    former, end = end_lost
    ends = queue_ends(Lake(str(lake)), rows(lake, "reput_progress")["broker"][0].as_py())
    assert ends["orders", 0] == 60
    with InProcessBroker(tmp_path, lakeLocation=str(lake)) as broker:
        store = broker.store
        assert store.log_id != former
        assert store.own_from >= end
        assert {key: end for key, end in ends.items() if store.index.max_offset(*key) < end} == {}
        assert store.index.max_offset("orders", 0) == 60
        assert broker.broker.catalog.topic("later") is not None
        assert broker.broker.catalog.group("afterwards") is not None
        assert broker.broker.deliveries.queue(KEY).lake_only == LakeOnly(spans=((20, 60),))
        first = broker.receive("orders", "billing")[1]
        first += broker.receive("orders", "billing", batch=9)[1]
        assert [each.body.decode() for each in first] == numbers(9, 29), (
            "nothing that was settled in the lost end"
        )
        assert broker.committed("orders", "billing") == 9
        broker.ack("orders", "billing", *first)
        for start_again in (broker.restart, broker.crash):
            start_again()
            assert broker.broker.deliveries.queue(KEY).lake_only == LakeOnly(spans=((29, 60),))
        store = broker.store
        assert bodies(broker) == [], "who does not wait gets nothing while it is read"
        assert bodies(broker) == numbers(29, 60), "what the lake alone has"
        assert broker.committed("orders", "billing") == 60
        assert events(broker, journal_pb2.SKIPPED) == []
        send(broker, 60, 80)
        broker.create_topic("later")
        broker.send("later", b"again")
        assert store.index.max_offset("later", 0) == 2
        assert bodies(broker) == numbers(60, 80)
        broker.flush()
        reput(broker.root, str(lake))
        assert_exact(lake)
        log_id = store.log_id
        for start_again in (broker.restart, broker.crash):
            start_again()
            assert broker.store.log_id == log_id
            assert broker.store.index.max_offset("orders", 0) == 80
            assert bodies(broker) == []
        send(broker, 80, 90)
        broker.reset("orders", "billing", 0, 0)
        assert bodies(broker) == numbers(0, 90)
        some = broker.receive("orders", "later-group", batch=10)[1]
        broker.ack("orders", "later-group", *some)
        broker.crash()
        assert bodies(broker, "later-group") == numbers(10, 90), "it is newer than what was lost"
        broker.flush()
        reput(broker.root, str(lake))
        assert_exact(lake)
    found = rows(lake, "messages").to_pylist()
    assert sorted(int(row["body"]) for row in found if row["topic"] == "orders") == list(range(90))


@pytest.mark.parametrize("table", ["consume_queue", "messages", "delivery_events"])
def test_a_batch_that_no_progress_covers_is_ahead_too(tmp_path: Path, table: str) -> None:
    lake = tmp_path / "lake"
    former, end = lose_the_end(tmp_path, str(lake), crash_behind=table)
    with InProcessBroker(tmp_path, lakeLocation=str(lake)) as broker:
        assert Lake(str(lake)).dispatched_to(broker.store.broker, former) <= end
        assert broker.store.log_id != former
        assert broker.store.index.max_offset("orders", 0) == 60
        send(broker, 60, 80)
        broker.flush()
        for _ in range(2):  # the first takes the rest of the former log, the second the new one
            reput(broker.root, str(lake))
        assert_exact(lake)
    found = [int(row["body"]) for row in rows(lake, "messages").to_pylist() if row["topic"] == "orders"]
    lost = range(20, 60) if table == "consume_queue" else ()
    assert sorted(found) == [number for number in range(80) if number not in lost]


def test_a_table_that_cannot_be_read_hides_no_lake_that_is_ahead(
    tmp_path: Path, end_lost: tuple[str, int]
) -> None:
    lake = tmp_path / "lake"
    former, end = end_lost
    for commit in (lake / "broker_stats" / "_delta_log").glob("*.json"):
        commit.write_text("no commit at all")
    with InProcessBroker(tmp_path, lakeLocation=str(lake)) as broker:
        assert Lake(str(lake)).dispatched_to(broker.store.broker, former) > end
        assert broker.store.log_id != former


@pytest.mark.parametrize("left_out", ["consume_queue", "delivery_events", "message_index,consume_queue"])
def test_a_group_skips_nothing_where_tables_were_left_out(tmp_path: Path, left_out: str) -> None:
    lake = str(tmp_path / "lake")
    lose_the_end(tmp_path, lake, Wanted(EVERYTHING.tables - set(left_out.split(","))))
    with InProcessBroker(tmp_path, lakeLocation=lake) as broker:
        assert broker.broker.deliveries.queue(KEY).lake_only == LakeOnly(spans=((20, 60),))
        assert bodies(broker) == numbers(9, 60)


@pytest.mark.parametrize("settled", [0, 1, 3])
def test_of_a_queue_that_the_log_has_nothing_of_each_message_comes_once(tmp_path: Path, settled: int) -> None:
    with LakeBroker(tmp_path) as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        broker.receive("orders", "billing")
        broker.dispatch()
        older = tmp_path / "older"
        copy_at_rest(broker.root, older)
        send(broker, 0, 3)
        if settled:
            broker.ack("orders", "billing", *broker.receive("orders", "billing", batch=settled)[1])
        broker.dispatch()
        broker.stop()
        shutil.rmtree(broker.root)
        older.rename(broker.root)
        broker.restart()
        assert (broker.min_offset("orders"), broker.store.index.absences("orders", 0)) == (3, [])
        assert lag(broker)["rocketmq_consumer_lag_messages"] == 3 - settled
        send(broker, 3, 5)
        found = list[str]()
        for _ in range(3):  # who does not wait gets nothing while it is read
            found += bodies(broker)
        assert found == numbers(settled, 5)
        for start_again in (broker.restart, broker.crash):
            start_again()
            broker.advance(1)
            assert bodies(broker) == []
            assert broker.committed("orders", "billing") == 5


def lag(broker: InProcessBroker) -> dict[str, float]:
    """Of the group, as metrics have it."""
    names = ("rocketmq_consumer_lag_messages", "lakebroker_lake_only_messages")
    return {
        name: value
        for name, _, labels, value in gauges(broker.broker)
        if name in names and labels["consumer_group"] == "billing"
    }


@pytest.mark.usefixtures("end_lost")
def test_what_only_the_lake_has_is_counted_once(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    with InProcessBroker(tmp_path, lakeLocation=lake) as broker:
        for here, there in ((11, 40), (0, 0)):
            assert lag(broker) == {
                "rocketmq_consumer_lag_messages": here + there,
                "lakebroker_lake_only_messages": there,
            }
            bodies(broker)
        broker.reset("orders", "billing", 0, 0)
        assert lag(broker)["rocketmq_consumer_lag_messages"] == 60


def test_the_option_keeps_the_start_from_it(tmp_path: Path, end_lost: tuple[str, int]) -> None:
    lake = str(tmp_path / "lake")
    former, end = end_lost
    with pytest.raises(StartError, match=r"its end was lost.*lakeNewLogWhenAhead=true"):
        InProcessBroker(tmp_path, lakeLocation=lake, lakeNewLogWhenAhead="false").__enter__()
    with InProcessBroker(tmp_path) as broker:
        assert (broker.store.log_id, broker.store.identity.beginning) == (former, False)
        assert broker.store.max_offset >= end


STEPS: list[tuple[Any, str]] = [
    (new_log, "queue_ends"),
    (message_store, "write_identity"),
    (message_store, "mark_folders"),
    (CommitLog, "fill_up"),
    (Journal, "replay"),
    (new_log, "raise_queues"),
    (Journal, "write_snapshot"),
    (MessageStore, "log_begun"),
]


def test_a_crash_at_any_step_leads_to_the_same_log(
    tmp_path: Path, end_lost: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, images = str(tmp_path / "lake"), list[Path]()
    former, _ = end_lost
    root = tmp_path / "store"

    def imaged(step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            result = step(*arguments, **named)
            images.append(tmp_path / f"image-{len(images)}")
            copy_at_rest(root, images[-1])
            return result

        return call

    with contextlib.ExitStack() as end:
        with monkeypatch.context() as patched:
            for owner, name in STEPS:
                patched.setattr(owner, name, imaged(getattr(owner, name)))
            broker = end.enter_context(InProcessBroker(tmp_path, lakeLocation=lake))
        begun, at = broker.store.log_id, broker.store.own_from
    assert len(images) == len(STEPS) + 2  # the identity is written twice, the journal replayed
    for number, image in enumerate(images):
        shutil.rmtree(root)
        image.rename(root)
        with InProcessBroker(tmp_path, lakeLocation=lake) as broker:
            store = broker.store
            assert (store.log_id == begun) == (number > 0)
            assert (store.own_from, store.identity.former_log_ids) == (at, (former,))
            assert not store.identity.beginning
            assert store.index.max_offset("orders", 0) == 60
            assert store.index.absences("orders", 0) == [(20, 60)]
            assert broker.replayed.snapshot_offset >= at
            assert bodies(broker) == numbers(9, 60)
            send(broker, 60, 61)
            assert bodies(broker) == ["60"]


@pytest.mark.usefixtures("end_lost")
def test_a_log_that_is_half_begun_needs_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = tmp_path / "lake"
    with monkeypatch.context() as patched:
        patched.setattr(new_log, "raise_queues", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            InProcessBroker(tmp_path, lakeLocation=str(lake)).__enter__()
    with pytest.raises(StartError, match="set lakeLocation as it was"):
        InProcessBroker(tmp_path).__enter__()
    lake.joinpath("consume_queue", "_delta_log").rename(tmp_path / "aside")
    with pytest.raises(StartError, match=r"cannot be read.*start again when it can"):
        InProcessBroker(tmp_path, lakeLocation=str(lake)).__enter__()
    (tmp_path / "aside").rename(lake / "consume_queue" / "_delta_log")
    with InProcessBroker(tmp_path, lakeLocation=str(lake)) as broker:
        assert broker.store.index.max_offset("orders", 0) == 60


def test_a_lake_that_cannot_be_read_at_first_is_compared_at_the_next_start(
    tmp_path: Path, end_lost: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    former, _ = end_lost

    def unreachable(*_: Any) -> int:
        raise LakeUnreachableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "dispatched_to", unreachable)
        with InProcessBroker(tmp_path, lakeLocation=lake) as broker:
            assert broker.store.log_id == former
            send(broker, 100, 102)
    with InProcessBroker(tmp_path, lakeLocation=lake) as broker:
        assert broker.store.log_id != former
        send(broker, 60, 62)
        assert bodies(broker) == [*numbers(9, 20), "100", "101", *numbers(22, 62)]
        assert broker.store.index.max_offset("orders", 0) == 62


@pytest.fixture
def hole(tmp_path: Path) -> Any:
    """A broker whose queue has 20 messages, millions of offsets that are the lake's alone, and 10 more."""
    with InProcessBroker(tmp_path) as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        send(broker, 0, 20)
        broker.advance(10)
        assert new_log.raise_queues(broker.store.index, {("orders", 0): FAR}) == 1
        send(broker, 20, 30)
        yield broker


def test_a_group_crosses_what_the_lake_alone_has_without_an_event_for_each(hole: InProcessBroker) -> None:
    assert bodies(hole, settle=False) == numbers(0, 30)
    state = hole.broker.deliveries.queue(KEY)
    assert (state.cursor, len(state.in_flight)) == (FAR + 10, 30)
    assert events(hole, journal_pb2.SKIPPED) == []


@pytest.mark.parametrize("expression", ["nothing", "*"])
def test_a_group_that_is_reset_into_it_goes_on_behind_it(hole: InProcessBroker, expression: str) -> None:
    hole.reset("orders", "billing", 0, 1_000)
    messages = hole.receive("orders", "billing", filter=expression)[1]
    assert len(messages) == (10 if expression == "*" else 0)
    assert hole.broker.deliveries.queue(KEY).cursor == FAR + 10


def test_it_is_known_after_a_restart_and_gone_with_what_was_before_it(hole: InProcessBroker) -> None:
    hole.broker.journal.write_snapshot()
    for start_again in (hole.restart, hole.crash):
        start_again()
        index = hole.store.index
        assert index.absences("orders", 0) == [(20, FAR)]
        assert index.absence("orders", 0, 0) == index.absence("orders", 0, FAR - 1) == (20, FAR)
        assert index.absence("orders", 0, FAR) is None
        assert (index.min_offset("orders", 0), index.max_offset("orders", 0)) == (0, FAR + 10)
    index.begin_at("orders", 0, FAR)
    assert index.absences("orders", 0) == []


def test_damage_beside_it_keeps_its_events(hole: InProcessBroker) -> None:
    physical, sizes, _ = hole.store.index.entries("orders", 0, 3, 1)
    start = int(physical[0])
    segment = sorted((hole.root / "commitlog").iterdir())[start // hole.store.segment_size]
    with segment.open("r+b") as file:
        file.seek(start % hole.store.segment_size + 4)
        file.write(bytes(4))
    assert int(sizes[0])
    assert bodies(hole) == [*numbers(0, 3), *numbers(4, 30)]
    assert events(hole, journal_pb2.SKIPPED) == [3]


def test_pulls_and_searches_by_time_pass_over_it(hole: InProcessBroker) -> None:
    messages, topic = hole.broker.administration.messages, hole.broker.catalog.topic("orders")
    assert topic is not None
    at, asked = 0, 0
    while at < FAR + 10:
        pulled = messages.pull(topic, 0, at, 8)
        at, asked = pulled.next_offset, asked + 1
        assert asked < 10
    search, offsets = hole.store.at_time("orders", 0), hole.broker.administration.offsets
    begin = offsets.stored_ms("orders", 0, 0)
    assert offsets.stored_ms("orders", 0, 1_000) == 0
    assert search(begin, BoundaryType.LOWER) == 0
    assert search(begin + 5_000, BoundaryType.LOWER) == FAR
    assert search(begin + 5_000, BoundaryType.UPPER) == 19
    assert search(begin + 60_000, BoundaryType.LOWER) == FAR + 10


def test_a_queue_that_ends_with_it_has_nothing_behind_it(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as broker:
        broker.create_topic("orders")
        broker.create_group("billing")
        send(broker, 0, 3)
        new_log.raise_queues(broker.store.index, {("orders", 0): FAR})
        at = broker.store.at_time("orders", 0)
        assert at(1 << 50, BoundaryType.LOWER) == FAR
        assert at(1 << 50, BoundaryType.UPPER) == 2
        broker.reset("orders", "billing", 0, 0)
        assert bodies(broker) == numbers(0, 3)
        waiting = broker.begin_receive("orders", "billing", wait_ms=60_000)
        assert not waiting.done
        send(broker, 3, 4)
        assert [each.body for each in waiting.messages] == [b"3"]
