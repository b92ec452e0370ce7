"""Offsets of groups, set: committed, reset, taken over; what is asked for wrongly changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.messaging.offset_changes import OffsetChanges
from broker_gateway.messaging.outcome import Reason, ServiceError
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t", 2)
        broker.create_group("g")
        for number in range(10):
            broker.send("t", b"%d" % number)
            broker.advance(1)
        yield broker


@pytest.fixture
def changes(broker: InProcessBroker) -> OffsetChanges:
    return broker.broker.parts.offset_changes


def ends(broker: InProcessBroker) -> dict[int, int]:
    return {queue_id: broker.broker.parts.offsets.end("t", queue_id) for queue_id in range(2)}


@pytest.mark.parametrize(
    ("asked", "reason", "named"),
    [
        (("none", "t", 0, 1), Reason.CONSUMER_GROUP_NOT_FOUND, "Group none .*lakebroker group create none"),
        (("g", "none", 0, 1), Reason.TOPIC_NOT_FOUND, "Topic none"),
        (("g", "t", 2, 1), Reason.BAD_REQUEST, "no queue 2"),
        (("g", "t", -1, 1), Reason.BAD_REQUEST, "no queue -1"),
        (("g", "t", 0, -1), Reason.BAD_REQUEST, "offset -1 is negative"),
    ],
)
def test_a_commit_that_cannot_be_is_named(
    broker: InProcessBroker,
    changes: OffsetChanges,
    asked: tuple[str, str, int, int],
    reason: Reason,
    named: str,
) -> None:
    with pytest.raises(ServiceError, match=named) as refused:
        broker.do(lambda: changes.commit(*asked))
    assert refused.value.reason is reason
    assert broker.committed("t", "g") is None


def test_a_commit_ends_at_the_end_of_the_queue(broker: InProcessBroker, changes: OffsetChanges) -> None:
    broker.do(lambda: changes.commit("g", "t", 0, 1 << 62))
    assert broker.committed("t", "g") == ends(broker)[0]


def test_a_reset_to_a_time_an_offset_or_the_end(broker: InProcessBroker, changes: OffsetChanges) -> None:
    assert broker.run(changes.reset("g", "t", -1, -1, None)) == ends(broker)
    assert broker.run(changes.reset("g", "t", -1, 0, None)) == {0: 0, 1: 0}
    third = broker.broker.parts.offsets.stored_ms("t", 0, 3)
    assert broker.run(changes.reset("g", "t", 0, third, None)) == {0: 3}
    assert broker.run(changes.reset("g", "t", 0, third, 2)) == {0: 2}
    assert broker.run(changes.reset("g", "t", 0, third, -1)) == {0: 3}, "-1 is none"
    broker.crash()
    assert broker.committed("t", "g") == 3


def test_a_reset_out_of_the_queue_is_refused(broker: InProcessBroker, changes: OffsetChanges) -> None:
    end = ends(broker)[0]
    with pytest.raises(ServiceError, match=rf"Target offset {end + 1} not in .* \[0-{end}\]"):
        broker.run(changes.reset("g", "t", 0, 0, end + 1))
    for asked in (("none", "t", 0), ("g", "none", 0), ("g", "t", 5)):
        with pytest.raises(ServiceError, match=r"none|no queue 5"):
            broker.run(changes.reset(*asked, 0, None))


def test_who_waits_is_woken_by_a_reset(broker: InProcessBroker, changes: OffsetChanges) -> None:
    broker.ack("t", "g", *broker.receive("t", "g")[1])
    waiting = broker.begin_receive("t", "g", wait_ms=20_000)
    assert not waiting.done
    broker.run(changes.reset("g", "t", -1, 0, None))
    broker.settle()
    assert waiting.done


def test_a_clone_passes_over_queues_where_the_group_never_was(
    broker: InProcessBroker, changes: OffsetChanges
) -> None:
    broker.do(lambda: changes.commit("g", "t", 1, 2))
    broker.do(lambda: changes.clone("g", "h", ["t", "none"]))
    assert (broker.committed("t", "h", 0), broker.committed("t", "h", 1)) == (None, 2)
