"""Messages looked up over log and lake: each once, the newest first, and never none where there may be some."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.delivery.filters.tags import parse_tag_filter
from broker_gateway.lake.message_search import LakeFound, LakeSearch
from broker_gateway.lake.reader import Lake
from broker_gateway.messaging import message_queries
from broker_gateway.messaging.message_queries import FoundMessage, MessageQueries, Position
from broker_gateway.messaging.message_search import Wanted
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import Topic
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.messages import message, send_request
from store.log.record import Host, PendingRecord, decode_record, offset_msg_id
from structured_streaming.staging.wanted import Wanted as Tables
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.maintained import reput
from tests.support.waiting import LIMIT_S

BODY = b"x" * 60_000
COUNT = 60
OLD, NEW = range(COUNT), range(COUNT, COUNT + 20)


def body(number: int) -> bytes:
    return b"%d:" % number + BODY


def send(broker: InProcessBroker, number: int) -> None:
    sent = message(
        "orders",
        body(number),
        {"number": str(number)},
        message_id=f"ID{number:030}",
        tag=("even", "odd")[number % 2],
        keys=[f"k{number}", f"tens-{number // 10}", "all"],
    )
    broker.call("SendMessage", send_request(sent))
    broker.advance(1)


def topic(broker: InProcessBroker) -> Topic:
    found = broker.broker.catalog.topic("orders")
    assert found is not None
    return found


def number_of(found: FoundMessage) -> int:
    number = int(bytes(found.record.body).split(b":")[0])
    assert found.properties["number"] == str(number)
    assert found.message_id == f"ID{number:030}"
    assert bytes(found.record.body) == body(number)
    return number


def page(
    broker: InProcessBroker, wanted: Wanted, most: int, position: Position | None = None
) -> tuple[list[int], Position | None]:
    found = broker.run(broker.broker.parts.message_queries.page(topic(broker), wanted, most, position))
    return [number_of(each) for each in found.messages], found.following


def everything(broker: InProcessBroker, wanted: Wanted, most: int = 7) -> list[int]:
    found: list[int] = []
    position, pages = None, 0
    while True:
        some, position = page(broker, wanted, most, position)
        assert len(some) <= most
        found += some
        pages += 1
        assert pages < 1000
        if position is None:
            return found


def descending(numbers: Any) -> list[int]:
    return sorted(numbers, reverse=True)


def cut(broker: InProcessBroker) -> None:
    """Deletes what the lake has; the first run has a snapshot of the journal begun, which is on disk by the second."""
    for _ in range(2):
        broker.run(broker.broker.retention.run_once(by_hand=True))
        broker.settle()
        broker.flush()


def make(broker: InProcessBroker, lake: Path, tables: Tables | None = None) -> None:
    """The first messages are in the lake, the oldest of them there alone; the last are in the log alone."""
    broker.create_topic("orders", 2)
    broker.create_topic("other")
    for number in OLD:
        send(broker, number)
    broker.send("other", b"0:" + BODY, keys=["all"])
    broker.flush()
    reput(broker.root, str(lake), **({} if tables is None else {"wanted": tables}))
    cut(broker)
    assert broker.store.min_offset > 0
    for number in NEW:
        send(broker, number)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def options(lake: Path) -> dict[str, str]:
    return {"lakeLocation": str(lake), "fileReservedTime": "0", "brokerName": "broker-a"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A folder with store and lake, and the time then."""
    folder = tmp_path_factory.mktemp("made")
    with InProcessBroker(folder, **options(folder / "lake")) as broker:
        make(broker, folder / "lake")
        return folder, broker.clock.now_ms


@pytest.fixture
def broker(made: tuple[Path, int], tmp_path: Path, lake: Path) -> Iterator[InProcessBroker]:
    folder, now_ms = made
    copy_folder(folder / "store", tmp_path / "store")
    copy_folder(folder / "lake", lake)
    with InProcessBroker(tmp_path, clock=ManualClock(now_ms), **options(lake)) as broker:
        yield broker


def test_each_message_is_given_once_the_newest_first(broker: InProcessBroker) -> None:
    for most in (1, 7, 1000):
        assert everything(broker, Wanted(), most) == descending([*OLD, *NEW])


def test_by_key_and_by_id_in_the_lake_and_in_the_log(broker: InProcessBroker) -> None:
    for number in (0, 5, COUNT - 1, COUNT, COUNT + 19):
        assert everything(broker, Wanted(key=f"k{number}")) == [number]
        assert everything(broker, Wanted(message_id=f"ID{number:030}")) == [number]
        assert everything(broker, Wanted(key=f"ID{number:030}")) == [number], "an id is a key, too"
        assert everything(broker, Wanted(message_id=f"k{number}")) == []
    assert everything(broker, Wanted(key="all"), 64) == descending([*OLD, *NEW])
    assert everything(broker, Wanted(key="tens-5")) == descending(range(50, 60))
    assert everything(broker, Wanted(key="nobody")) == []


def test_by_tag_queue_and_time(broker: InProcessBroker) -> None:
    odd = Wanted(tags=parse_tag_filter("odd || none"))
    assert everything(broker, odd) == descending(n for n in [*OLD, *NEW] if n % 2)
    queues = [everything(broker, Wanted(queue_id=each)) for each in (0, 1)]
    assert sorted(queues[0] + queues[1]) == [*OLD, *NEW]
    assert min(map(len, queues)) > 10
    stored = {number_of(each): each.record.store_timestamp for each in _all(broker)}
    between = Wanted(stored[10], stored[70])
    assert everything(broker, between) == descending(range(10, 71))
    assert everything(broker, between._replace(end_ms=stored[10])) == [10]
    assert everything(broker, Wanted(stored[79] + 1)) == []


def _all(broker: InProcessBroker) -> list[FoundMessage]:
    found: list[FoundMessage] = []
    position = None
    while True:
        queries = broker.broker.parts.message_queries
        some = broker.run(queries.page(topic(broker), Wanted(), 1000, position))
        found += some.messages
        position = some.following
        if position is None:
            return found


def test_pages_go_on_when_the_log_is_cut_between_them(broker: InProcessBroker, lake: Path) -> None:
    found, position = page(broker, Wanted(), 15)
    broker.flush()
    reput(broker.root, str(lake))
    before = broker.store.min_offset
    for _ in range(20):
        broker.send("other", BODY)
    cut(broker)
    assert broker.store.min_offset > before
    while position is not None:
        some, position = page(broker, Wanted(), 15, position)
        found += some
    assert found == descending([*OLD, *NEW])


def test_with_the_lake_away_what_the_log_has_is_given_and_then_why_there_is_no_more(
    broker: InProcessBroker, lake: Path
) -> None:
    shutil.rmtree(lake / "messages" / "_delta_log")
    found, position = page(broker, Wanted(), 1000)
    assert found
    assert position is not None
    assert position.in_lake
    with pytest.raises(ServiceError, match=r"in the lake, which cannot be read now.*try again") as refused:
        page(broker, Wanted(), 1000, position)
    assert refused.value.reason is Reason.INTERNAL_SERVER_ERROR
    shutil.rmtree(lake)
    with pytest.raises(ServiceError, match="there is no lake at"):
        page(broker, Wanted(key="k0"), 1)
    stored = broker.broker.parts.offsets.stored_ms(
        "orders", 0, broker.broker.parts.offsets.end("orders", 0) - 2
    )
    assert everything(broker, Wanted(begin_ms=stored)), "the log has all of that time"


class SlowSearch(LakeSearch):
    """Each search waits until `goes_on`."""

    goes_on = threading.Event()

    def newest(self, *asked: Any, **more: Any) -> LakeFound | None:
        self.goes_on.wait()
        return LakeFound([], None)


def test_searches_of_a_slow_lake_are_few_at_a_time_and_none_of_the_log_waits_for_them(
    broker: InProcessBroker, lake: Path
) -> None:
    core, search = broker.broker.core, broker.broker.parts.message_search
    in_lake = Position(broker.store.log_id, broker.store.min_offset, in_lake=True)
    slow_lake = SlowSearch(Lake(str(lake)), "broker-a")

    async def play() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        queries = MessageQueries(core, search, slow_lake)
        slow = [
            asyncio.create_task(queries.page(topic(broker), Wanted(), 1, in_lake))
            for _ in range(message_queries.MAX_IN_LAKE)
        ]
        await asyncio.sleep(0)
        try:
            found = await asyncio.wait_for(queries.page(topic(broker), Wanted(), 1), LIMIT_S)
            assert [number_of(each) for each in found.messages] == [NEW[-1]]
            with pytest.raises(ServiceError, match="2 searches of the lake run already"):
                await queries.page(topic(broker), Wanted(), 1, in_lake)
            slow_lake.goes_on.set()
            await asyncio.gather(*slow)
            assert (await queries.page(topic(broker), Wanted(), 1, in_lake)).messages == []
        finally:
            slow_lake.goes_on.set()
            queries.stop()

    asyncio.run(play())


def test_a_page_has_a_number_of_bytes(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_queries, "PAGE_BYTES", 200_000)
    found, _ = page(broker, Wanted(), 1000)
    assert len(found) == 3
    assert everything(broker, Wanted(), 1000) == descending([*OLD, *NEW])
    monkeypatch.setattr(message_queries, "PAGE_BYTES", 1)
    assert len(page(broker, Wanted(), 1000)[0]) == 1


def test_what_was_looked_through_in_part_is_gone_on_with(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_queries, "SCANNED", 300_000)
    some, position = page(broker, Wanted(key="k61"), 5)
    assert some == []
    assert position is not None
    assert everything(broker, Wanted(key="k61")) == [61]
    assert everything(broker, Wanted(key="k3")) == [3]
    monkeypatch.setattr(message_queries, "LOG_S", -1.0)
    assert everything(broker, Wanted(), 1000) == descending([*OLD, *NEW])


def test_a_lake_that_takes_its_time_gives_what_is_certain(
    broker: InProcessBroker, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.flush()
    reput(broker.root, str(lake))  # a second file of each table
    broker.send("other", BODY * 4)
    for _ in range(30):
        broker.send("other", BODY)
    broker.flush()
    reput(broker.root, str(lake))
    cut(broker)
    assert everything(broker, Wanted(), 1000) == descending([*OLD, *NEW])
    monkeypatch.setattr(message_queries, "LAKE_S", -1.0)
    assert everything(broker, Wanted(), 1000) == descending([*OLD, *NEW])
    assert everything(broker, Wanted(key="k0")) == [0]


def test_without_the_index_the_messages_tell(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = {"lakeLocation": str(lake), "fileReservedTime": "0"}
    with InProcessBroker(tmp_path, **options) as broker:
        make(broker, lake, Tables(frozenset({"messages", "consume_queue"})))
        assert everything(broker, Wanted(key="k0")) == [0]
        assert everything(broker, Wanted(message_id=f"ID{3:030}")) == [3]
        assert everything(broker, Wanted(key="all"), 50) == descending([*OLD, *NEW])


def test_what_was_found_can_be_consumed_wherever_it_is(broker: InProcessBroker) -> None:
    for number in (0, COUNT):
        wanted = Wanted(message_id=f"ID{number:030}")
        (found,) = broker.run(broker.broker.parts.message_queries.page(topic(broker), wanted, 1)).messages
        stored = found.stored()
        assert (stored.message_id, stored.properties) == (found.message_id, found.properties)
        again = decode_record(stored.data)
        sizes = {"size": 0, "properties": b""}
        assert replace(again, **sizes) == replace(found.record, **sizes)


def test_a_message_without_its_body_cannot_be_consumed(tmp_path: Path, lake: Path) -> None:
    options = {"lakeLocation": str(lake), "fileReservedTime": "0"}
    with InProcessBroker(tmp_path, **options) as broker:
        make(broker, lake, Tables(without_bodies=("orders",)))
        wanted = Wanted(message_id=f"ID{0:030}")
        (found,) = broker.run(broker.broker.parts.message_queries.page(topic(broker), wanted, 1)).messages
        with pytest.raises(ServiceError, match="without its body") as refused:
            found.stored()
        assert refused.value.reason is Reason.MESSAGE_NOT_FOUND


@pytest.mark.parametrize(
    "position",
    [
        Position("another", 0),
        Position("", 0, True),
        Position("own", 1 << 60),
        Position("own", 1 << 60, True),
        Position("own", -1),
        Position("own", 0x7FFF_FFFF),
    ],
)
def test_positions_that_are_none(broker: InProcessBroker, position: Position) -> None:
    if position.log_id == "own":
        position = position._replace(log_id=broker.store.log_id)
        if position.physical_offset == 0x7FFF_FFFF:
            start = int(
                broker.store.index.entries("orders", 0, broker.broker.parts.offsets.end("orders", 0) - 1, 1)[
                    0
                ][0]
            )
            position = position._replace(physical_offset=start + 1)
    with pytest.raises(
        ServiceError, match="scroll_id is of no query of this broker's present log"
    ) as refused:
        page(broker, Wanted(), 1, position)
    assert refused.value.reason is Reason.BAD_REQUEST


def test_where_searching_by_key_is_off_it_is_said(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path, messageIndexEnable="false") as broker:
        broker.create_topic("orders")
        send(broker, 0)
        assert everything(broker, Wanted()) == [0]
        with pytest.raises(ServiceError, match="messageIndexEnable=false") as refused:
            page(broker, Wanted(key="k0"), 1)
        assert refused.value.reason is Reason.FORBIDDEN


def test_what_a_store_lost_of_its_end_is_in_the_lake_and_each_is_given_once(
    tmp_path: Path, lake: Path
) -> None:
    with InProcessBroker(tmp_path, lakeLocation=str(lake)) as broker:
        broker.create_topic("orders", 2)
        for number in range(20):
            send(broker, number)
        broker.stop()
        shutil.copytree(broker.root, tmp_path / "older")
        broker.restart()
        for number in range(20, 40):
            send(broker, number)
        broker.flush()
        reput(broker.root, str(lake))
        former = broker.store.log_id
        broker.stop()
        shutil.rmtree(broker.root)
        (tmp_path / "older").rename(broker.root)
        broker.restart()
        assert broker.store.log_id != former
        for number in range(40, 50):
            send(broker, number)
        assert everything(broker, Wanted()) == [
            *descending([*range(20), *range(40, 50)]),
            *descending(range(20, 40)),
        ]
        assert everything(broker, Wanted(key="k30")) == [30]
        assert everything(broker, Wanted(key="k3")) == [3]
        broker.flush()
        reput(broker.root, str(lake))
        assert sorted(everything(broker, Wanted())) == list(range(50))


def test_messages_of_a_lost_disk_are_in_the_lake(tmp_path: Path, lake: Path) -> None:
    with InProcessBroker(tmp_path, lakeLocation=str(lake)) as broker:
        broker.create_topic("orders", 2)
        for number in range(10):
            send(broker, number)
        broker.flush()
        reput(broker.root, str(lake))
        broker.stop()
        shutil.rmtree(broker.root)
        broker.restart()
        for number in range(10, 15):
            send(broker, number)
        assert everything(broker, Wanted()) == descending(range(15))
        assert everything(broker, Wanted(key="k4")) == [4]


def test_a_message_without_an_id_of_its_client_has_one_of_its_place(tmp_path: Path, lake: Path) -> None:
    with InProcessBroker(tmp_path, lakeLocation=str(lake), fileReservedTime="0") as broker:
        broker.create_topic("orders")

        def append() -> str:
            record = PendingRecord("orders", 0, BODY, b"", 0, Host("127.0.0.1", 1).packed)
            (appended,) = broker.do(lambda: broker.store.append([record]))
            broker.advance(1)
            return offset_msg_id(Host("127.0.0.1", 10911).packed, appended.physical_offset)

        def found(message_id: str) -> list[bytes]:
            queries = broker.broker.parts.message_queries
            some = broker.run(queries.page(topic(broker), Wanted(message_id=message_id), 5))
            return [bytes(each.record.body) for each in some.messages]

        old = append()
        assert found(old) == found(old.lower()) == [BODY]
        for _ in range(40):
            append()
        broker.flush()
        reput(broker.root, str(lake))
        cut(broker)
        assert broker.store.min_offset > 0
        assert found(old) == [BODY]
        assert found(append()) == [BODY]
        for wrong in ("00" * 16, "FF" * 16, old[:-1] + "7", "7" * 56):
            assert found(wrong) == []
