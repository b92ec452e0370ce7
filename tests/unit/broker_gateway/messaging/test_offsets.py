"""Where queues begin and end, where they were at a time, how far groups are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from broker_gateway.messaging import offsets as module
from broker_gateway.messaging.offsets import Offsets, Progress, QueueStatus
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.observability.metrics import Metrics
from lakebroker_testing.broker import InProcessBroker
from store.index.time_search import BoundaryType
from tests.support.lakes.slow import SlowLake
from tests.support.waiting import LIMIT_S


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    """A message each second, three in all."""
    with InProcessBroker() as broker:
        broker.create_topic("t")
        for body in (b"0", b"1", b"2"):
            broker.send("t", body)
            broker.advance(1)
        yield broker


@pytest.fixture
def offsets(broker: InProcessBroker) -> Offsets:
    return broker.broker.parts.offsets


def test_bounds_and_times_of_a_queue(broker: InProcessBroker, offsets: Offsets) -> None:
    first = offsets.earliest_ms("t", 0)
    last = offsets.stored_ms("t", 0, 2)
    assert offsets.bounds("t", 0) == (0, 3)
    assert last - first == 2000
    assert offsets.status("t", 0) == QueueStatus(0, 0, 3, last)
    assert (offsets.stored_ms("t", 0, 3), offsets.stored_ms("t", 0, -1)) == (0, 0)
    assert (offsets.earliest_ms("t", 1), offsets.status("t", 1)) == (-1, QueueStatus(1, 0, 0, 0))


def test_a_record_that_cannot_be_read_hides_nothing_else(broker: InProcessBroker, offsets: Offsets) -> None:
    """Who asks about all queues of a topic is told of the others."""
    (at,) = broker.store.index.entries("t", 0, 2, 1)[0]
    broker.flush()
    broker.flip_byte("commitlog/*", int(at) + 4)
    assert offsets.stored_ms("t", 0, 2) == 0
    assert offsets.status("t", 0) == QueueStatus(0, 0, 3, 0)
    group = broker.broker.parts.progress
    topic = broker.broker.catalog.topic("t")
    assert topic is not None
    broker.create_group("g")
    broker.reset("t", "g", 0, 3)
    found = broker.run(group.accumulations("g", [topic], broker.clock.now_ms))
    assert (found["t"].ready, found["t"].settled_ms) == (0, 0)


def test_an_offset_by_time(broker: InProcessBroker, offsets: Offsets) -> None:
    second = offsets.stored_ms("t", 0, 1)
    found = [broker.run(offsets.at("t", 0, second + more)) for more in (-1, 0, 1, 100_000)]
    assert found == [1, 1, 2, 3]
    assert broker.run(offsets.at("t", 0, second + 1, BoundaryType.UPPER)) == 1


def test_searches_by_time_are_few_at_a_time(broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SEARCHES", 2)
    broker.restart()
    offsets = broker.broker.parts.offsets

    async def three() -> list[object]:
        return await asyncio.gather(*(offsets.at("t", 0, 0) for _ in range(3)), return_exceptions=True)

    *found, refused = broker.run(three())
    assert found == [0, 0]
    assert isinstance(refused, ServiceError)
    assert refused.reason is Reason.TOO_MANY_REQUESTS
    assert broker.run(offsets.at("t", 0, 0)) == 0, "the others have ended"


def test_searches_of_the_log_do_not_wait_for_a_slow_lake(
    broker: InProcessBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SEARCHES", 1)
    monkeypatch.setattr(module, "MAX_LAKE_SEARCHES", 3)
    broker.create_topic("old")
    index = broker.store.index
    index.raise_next("old", 0, 1000)
    lake = SlowLake(tmp_path)

    async def play() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        old = OldMessages(lake, index, 64 << 20, lambda key: None, Metrics())
        core = broker.broker.core
        offsets = Offsets(core, broker.broker.parts.resources, old)
        slow: list[asyncio.Task[int]] = []
        try:
            for number in range(2):
                slow.append(asyncio.create_task(offsets.at("old", 0, number)))
                await lake.was_asked(number + 1)
            slow.append(asyncio.create_task(offsets.oldest("old", 0)))
            assert await asyncio.wait_for(offsets.at("t", 0, 0), LIMIT_S) == 0
            with pytest.raises(ServiceError, match="3 searches of queues in the lake run already") as refused:
                await offsets.oldest("old", 0)
            assert refused.value.reason is Reason.TOO_MANY_REQUESTS
        finally:
            lake.goes_on.set()
            found = await asyncio.gather(*slow)
            await old.stop()
        assert found == [0, 1, 7]

    asyncio.run(play())


def test_how_far_a_group_is(broker: InProcessBroker, offsets: Offsets) -> None:
    with pytest.raises(ServiceError, match="received nothing from queue 0 of 't'") as unknown:
        offsets.committed("g", "t", 0)
    assert unknown.value.reason is Reason.OFFSET_NOT_FOUND
    assert offsets.known("g", "t", 0) is None
    assert offsets.progress("g", "t", 0) == Progress("t", 0, 3, 0, 0, 0)
    taken = broker.receive("t", "g", batch=2)[1]
    broker.ack("t", "g", taken[0])
    found = offsets.progress("g", "t", 0)
    assert (found.consumer_offset, found.pull_offset, found.behind, found.in_flight) == (1, 2, 2, 1)
    assert found.last_ms == offsets.stored_ms("t", 0, 0)
    assert offsets.committed("g", "t", 0) == 1
    with pytest.raises(ServiceError, match="empty"):
        offsets.committed("", "t", 0)


def test_all_that_groups_have(broker: InProcessBroker, offsets: Offsets) -> None:
    broker.create_topic("u", 2)
    for group in ("g", "h"):
        broker.receive("t", group)
    broker.receive("u", "g")
    assert broker.run(offsets.all()) == {"t@g": {0: 0}, "t@h": {0: 0}, "u@g": {0: 0, 1: 0}}
    assert (offsets.groups_of("t"), offsets.topics_of("g")) == (["g", "h"], ["t", "u"])
    assert offsets.topics_by_group() == {"g": {"t", "u"}, "h": {"t"}}
    assert (offsets.read_queues("u"), offsets.read_queues("none")) == (2, 0)


def test_a_new_group_begins_at_zero_where_the_queue_does(broker: InProcessBroker, offsets: Offsets) -> None:
    assert offsets.begins_at_zero("t", 0)
    assert not offsets.begins_at_zero("t", 1), "it has no message"


@pytest.mark.parametrize(
    ("queue", "reason", "named"),
    [
        (("none", 0, ""), Reason.TOPIC_NOT_FOUND, "'none' does not exist"),
        (("t", 1, ""), Reason.BAD_REQUEST, "no queue 1; it has 0 to 0"),
        (("t", -1, ""), Reason.BAD_REQUEST, "no queue -1"),
        (("t", 0, "other"), Reason.BAD_REQUEST, "of broker 'other', this one is broker-a; ask there"),
    ],
)
def test_a_queue_that_is_not_here_is_named(
    offsets: Offsets, queue: tuple[str, int, str], reason: Reason, named: str
) -> None:
    with pytest.raises(ServiceError, match=named) as refused:
        offsets.check_queue(*queue)
    assert refused.value.reason is reason
    offsets.check_queue("t", 0, "broker-a")
