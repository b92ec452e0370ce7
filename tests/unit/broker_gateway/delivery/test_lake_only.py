"""Messages that only the lake has: unsettled, and in nobody's flight."""

from __future__ import annotations

import pytest

from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.lake_only import NOTHING, LakeMessage, LakeOnly
from broker_gateway.delivery.queue_delivery import QueueDelivery, QueueKey

KEPT = LakeOnly((LakeMessage(3, 2, "m3"), LakeMessage(7, 1, "m7")), ((8, 10), (12, 13)))


@pytest.fixture
def state() -> QueueDelivery:
    made = QueueDelivery(QueueKey("g", "t", 0), 20)
    made.restore_lake_only(KEPT)
    return made


def test_what_they_are() -> None:
    assert (KEPT.first, KEPT.count, bool(KEPT), bool(NOTHING), NOTHING.count) == (3, 5, True, False, 0)
    assert LakeOnly(spans=((8, 10),)).first == 8


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": (LakeMessage(3, 1, ""), LakeMessage(3, 1, ""))},
        {"spans": ((4, 4),)},
        {"spans": ((4, 6), (5, 7))},
        {"spans": ((-1, 7),)},
    ],
)
def test_what_is_in_no_order_is_refused(wrong: dict[str, tuple[object, ...]]) -> None:
    with pytest.raises(ValueError, match="do not ascend"):
        LakeOnly(**wrong)  # type: ignore[arg-type]


def test_further_ones_stand_behind_those_before() -> None:
    assert NOTHING.followed_by(KEPT.messages, KEPT.spans) == KEPT
    assert KEPT.followed_by([], [(14, 15)]) == LakeOnly(KEPT.messages, (*KEPT.spans, (14, 15)))
    for messages, spans in (([LakeMessage(7, 1, "")], []), ([], [(11, 12)]), ([], [(13, 13)])):
        with pytest.raises(ValueError, match="do not ascend"):
            KEPT.followed_by(messages, spans)


def test_they_hold_the_committed_offset_and_nothing_else(state: QueueDelivery) -> None:
    assert (state.committed, state.position, state.quiet(1 << 61), state.next_due_ms()) == (3, 20, True, None)
    assert state.room(1) == 1
    plan = state.plan(32, 100)
    assert (list(plan.again), plan.cursor) == ([], 20)
    message = InFlight(20, 1, 100, 7, "m", "c")
    plan.delivered.append(message)
    plan.cursor = 21
    state.commit(plan)
    state.settle(message)
    assert (state.committed, state.cursor) == (3, 21)


def test_a_client_commits_past_them(state: QueueDelivery) -> None:
    state.commit_offset(15)
    assert (state.consumer_offset, state.position, state.lake_only) == (15, 20, KEPT)


def test_a_reset_ends_them(state: QueueDelivery) -> None:
    state.reset(20)
    assert (state.committed, state.lake_only) == (20, NOTHING)
