"""Messages that only the lake has: unsettled, and in nobody's flight until they are read from there."""

from __future__ import annotations

import pytest

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.lake_only import NOTHING, LakeMessage, LakeOnly
from broker_gateway.delivery.queue_delivery import DeliveryError, QueueDelivery, QueueKey

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


def test_parts_of_them() -> None:
    assert KEPT.before(9) == LakeOnly(KEPT.messages, ((8, 9),))
    assert KEPT.from_offset(9) == LakeOnly((), ((9, 10), (12, 13)))
    assert KEPT.read_to(9) == LakeOnly(KEPT.messages, ((9, 10), (12, 13)))
    assert KEPT.read_to(13) == LakeOnly(KEPT.messages)
    assert KEPT.without({3, 8}) == LakeOnly(KEPT.messages[1:], KEPT.spans)
    assert [KEPT.next_span(offset) for offset in (0, 8, 9, 10, 12, 13)] == [
        (8, 10), (8, 10), (9, 10), (12, 13), (12, 13), None,
    ]  # fmt: skip


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


def test_what_had_been_handed_out_is_in_flight_and_due_where_there_is_the_lake(state: QueueDelivery) -> None:
    state.restore(InFlight(5, 1, 1000, 9, "m5", "c"))
    state.deliver_from_lake(
        [InFlight(each.queue_offset, each.attempt, 50, 1, each.message_id, "") for each in KEPT.messages]
    )
    assert list(state.in_flight) == [3, 5, 7]
    assert (state.lake_only, state.committed) == (LakeOnly(spans=KEPT.spans), 3)
    assert state.due(50) is state.in_flight[3]


def test_a_receive_takes_the_ranges_and_goes_on_where_it_ended(state: QueueDelivery) -> None:
    state.restore(InFlight(15, 1, 1000, 9, "m15", "c"))
    plan = state.plan(32, 100)
    plan.delivered += [InFlight(9, 1, 100, 7, "m9", "c"), InFlight(20, 1, 100, 7, "m20", "c")]
    plan.lake_read_to, plan.cursor = 10, 21  # 8 was passed over by a filter
    assert plan.advanced
    state.commit(plan)
    assert list(state.in_flight) == [9, 15, 20], "in the order of the queue"
    assert (state.lake_only.spans, state.lake_read_to, state.cursor) == (((12, 13),), 10, 21)
    assert state.committed == 3
    for offset in (11, 12):  # not of a range, and beyond what was read
        wrong = state.plan(32, 100)
        wrong.delivered.append(InFlight(offset, 1, 100, 7, "m", "c"))
        wrong.lake_read_to = 12
        with pytest.raises(DeliveryError, match="is not new"):
            state.commit(wrong)


def test_message_groups_have_what_came_from_the_lake_in_its_place(state: QueueDelivery) -> None:
    state.restore_lake_only(LakeOnly(spans=((8, 10),)))
    state.restore(InFlight(15, 1, 10, 9, "m15", "c", nacked=True, message_group="a"))
    plan = state.plan(32, 100, ordered=True)
    plan.held += [InFlight(9, 0, 0, 0, "m9", "", status=Status.HELD, message_group="a")]
    plan.lake_read_to = 10
    state.commit(plan)
    assert [each.queue_offset for each in state.plan(32, 100, ordered=True).again] == [9], (
        "before 15, which is not due"
    )


@pytest.mark.parametrize("settled", [False, True])
def test_events_of_a_replay_take_them_out(state: QueueDelivery, settled: bool) -> None:
    if settled:
        state.restore_settled(3)
    else:
        state.restore(InFlight(3, 3, 100, 7, "m3", "c"))
    state.restore_lake_read(9)
    state.sort()
    assert state.lake_only == LakeOnly(KEPT.messages[1:], ((9, 10), (12, 13)))
    assert list(state.in_flight) == ([] if settled else [3])


def test_who_is_new_or_goes_back_reads_absences(state: QueueDelivery) -> None:
    assert not state.reads_absences
    state.commit_offset(5)  # beside the cursor
    assert not state.reads_absences
    state.restore_lake_only(NOTHING)
    state.commit_offset(25)
    assert not state.reads_absences
    state.commit_offset(5)
    assert state.reads_absences
    state.restore_reads_absences(False)
    state.reset(20)
    assert state.reads_absences
