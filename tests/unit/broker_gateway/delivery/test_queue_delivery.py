"""Delivery state of a group on a queue, and the table of them: no IO, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker_gateway.delivery.filters.tags import parse_tag_filter
from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.queue_delivery import DeliveryError, QueueDelivery, QueueKey
from broker_gateway.delivery.table import DeliveryTable
from tests.suite.evidence import rounds

KEY = QueueKey("g", "t", 0)


def flying(offset: int, until: int = 100, delivery_id: int = 1, attempt: int = 1, **given: Any) -> InFlight:
    return InFlight(offset, attempt, until, delivery_id, f"m{offset}", "client", **given)


def deliver(made: QueueDelivery, *messages: InFlight) -> None:
    """Hands out new messages, in ascending order; offsets in between are passed over."""
    plan = made.plan(100, 1 << 30)
    plan.delivered += messages
    plan.cursor = messages[-1].queue_offset + 1
    made.commit(plan)


def redeliver(made: QueueDelivery, now: int, until: int, delivery_id: int, **asked: Any) -> list[int]:
    """Hands out all that can be had again."""
    while (message := made.due(now)) is not None:
        made.wake(message, now)
    plan = made.plan(100, 1 << 30, **asked)
    for message in plan.again:
        plan.redeliver(message, flying(message.queue_offset, until, delivery_id, message.attempt + 1))
    made.commit(plan)
    return [message.queue_offset for message in plan.again]


def state(*offsets: int, cursor: int = 0) -> QueueDelivery:
    made = QueueDelivery(KEY, cursor)
    for offset in offsets:
        deliver(made, flying(offset))
    return made


def settle(made: QueueDelivery, offset: int, delivery_id: int = 1) -> bool:
    message = made.find(offset, delivery_id)
    if message is not None:
        made.settle(message)
    return message is not None


def returned(made: QueueDelivery, offset: int, code: int = 0) -> InFlight:
    """Its client hung up before the reply."""
    message = made.in_flight[offset]
    changed = replace(message, attempt=message.attempt - 1, status=Status.RETURNED, tags_code=code)
    made.replace(message, changed)
    return changed


def test_nothing_in_flight_commits_the_cursor() -> None:
    assert state(cursor=7).committed == 7
    assert state(cursor=7).next_due_ms() is None
    assert state(cursor=7).due(1 << 62) is None


def test_committed_is_the_first_offset_in_flight() -> None:
    made = state(5, 6, 9, cursor=5)
    assert (made.cursor, made.committed) == (10, 5)
    assert settle(made, 6)
    assert made.committed == 5
    assert settle(made, 5)
    assert made.committed == 9
    assert settle(made, 9)
    assert made.committed == made.cursor == 10


def test_only_the_last_delivery_id_settles() -> None:
    made = state(0)
    assert not settle(made, 0, 2)
    assert not settle(made, 1)
    assert redeliver(made, 100, 300, 2) == [0]
    assert made.find(0, 1) is None
    assert settle(made, 0, 2)
    assert not settle(made, 0, 2)


def test_a_redelivery_keeps_its_place_and_the_cursor() -> None:
    made = state(0, 2)
    deliver(made, flying(3, until=500))
    made.postpone(made.in_flight[2], 900)
    assert redeliver(made, 100, 500, 2) == [0]
    assert made.cursor == 4
    assert list(made.in_flight) == [0, 2, 3]
    settle(made, 0, 2)
    assert made.committed == 2


def test_messages_are_due_at_their_time_the_earliest_first() -> None:
    made = QueueDelivery(KEY, 0)
    for offset, until in enumerate((300, 100, 200)):
        deliver(made, flying(offset, until))
    assert made.next_due_ms() == 100
    assert made.due(99) is None
    assert redeliver(made, 250, 400, 2) == [1, 2]
    assert made.next_due_ms() == 300
    assert list(made.in_flight) == [0, 1, 2], "due messages stay in flight"


def test_postponing_moves_the_due_time_both_ways() -> None:
    made = state(0)
    message = made.in_flight[0]
    made.postpone(message, 500)
    assert made.due(499) is None
    made.postpone(message, 50)
    assert made.next_due_ms() == 50
    assert made.due(50) is message
    made.wake(message, 50)
    assert made.due(1000) is None, "the old times count no longer"
    made.postpone(message, 60)
    assert made.due(60) is message


def test_a_settled_message_is_never_due() -> None:
    made = state(0, 1)
    settle(made, 0)
    assert redeliver(made, 100, 200, 2) == [1]


def test_what_is_settled_or_changed_while_it_is_ready_is_not_delivered() -> None:
    made = state(0, 1, 2)
    while (message := made.due(100)) is not None:
        made.wake(message, 100)
    settle(made, 0)
    made.postpone(made.in_flight[1], 1000)
    assert [each.queue_offset for each in made.plan(9, 9).again] == [2]
    assert made.next_due_ms() == 1000


def test_what_was_planned_and_not_committed_is_planned_again() -> None:
    made = state(0, 1)
    while (message := made.due(100)) is not None:
        made.wake(message, 100)
    for _ in range(2):
        plan = made.plan(1, 9)
        assert [each.queue_offset for each in plan.again] == [0]
        plan.redeliver(plan.again[0], flying(0, 300, 2, 2))
        plan.delivered.append(flying(2))
        plan.cursor = 3
    assert (made.cursor, list(made.in_flight)) == (2, [0, 1])
    made.commit(plan)
    assert (made.cursor, list(made.in_flight)) == (3, [0, 1, 2])
    with pytest.raises(DeliveryError, match="planned at 2"):
        made.commit(plan)


def test_impossible_events_raise() -> None:
    made = state(0, 1)
    first, second = made.in_flight.values()
    settle(made, 0)
    for event in (
        lambda: made.settle(first),
        lambda: made.postpone(first, 5),
        lambda: made.replace(first, flying(0)),
        lambda: made.replace(second, flying(0)),
        lambda: made.wake(second, 99),
    ):
        with pytest.raises(DeliveryError):
            event()
    plan = made.plan(9, 9)
    plan.delivered.append(flying(1))
    with pytest.raises(DeliveryError, match="is not new"):
        made.commit(plan)
    assert (made.cursor, list(made.in_flight)) == (2, [1])


def test_what_no_client_saw_goes_to_the_filter_that_takes_it() -> None:
    """Who passes over it changes nothing; at the end of its invisible time anybody has it."""
    made = state(0, 1)
    a, b = parse_tag_filter("a"), parse_tag_filter("b")
    returned(made, 0, int(a.codes[0]))
    settle(made, 1)
    assert redeliver(made, 50, 200, 2, wanted=b) == []
    assert not made.quiet(50)
    assert (made.committed, made.next_due_ms()) == (0, 100)
    plan = made.plan(9, 9, wanted=a)
    assert [each.queue_offset for each in plan.again] == [0]
    plan = made.plan(9, 9)
    assert [each.queue_offset for each in plan.again] == [0]
    assert redeliver(made, 100, 200, 2, wanted=b) == [0]
    assert made.in_flight[0].attempt == 1


def test_replay_in_any_order_ends_sorted() -> None:
    made = QueueDelivery(KEY, 10)
    for offset in (7, 3, 9):
        made.restore(flying(offset, until=100 + offset))
    made.sort()
    assert list(made.in_flight) == [3, 7, 9]
    assert (made.cursor, made.committed, made.next_due_ms()) == (10, 3, 103)


def test_reset_forgets_everything_in_flight() -> None:
    made = state(0, 1, 2)
    due = made.due(100)
    assert due is not None
    made.wake(due, 100)
    returned(made, 1)
    made.reset(1)
    assert (made.cursor, made.committed, made.next_due_ms(), made.plan(9, 9).again) == (1, 1, None, [])
    assert not settle(made, 0)


def test_an_offset_that_a_client_commits_moves_nothing_else() -> None:
    made = state(0, 1, 2)
    made.commit_offset(10)
    assert (made.consumer_offset, made.committed, made.position, list(made.in_flight)) == (
        10,
        0,
        10,
        [0, 1, 2],
    )
    assert settle(made, 0)
    made.commit_offset(1)
    assert (made.consumer_offset, made.position) == (1, 3), "not back behind what was handed out"
    assert settle(made, 1)
    assert (made.consumer_offset, made.client_offset) == (2, None), "it is past that"
    assert settle(made, 2)
    made.commit_offset(1)
    assert (made.consumer_offset, made.position, made.cursor) == (1, 1, 1), "nothing is in flight"


def test_times_of_settled_messages_do_not_pile_up() -> None:
    made = state(0)
    message = made.in_flight[0]
    for until in range(10_000):
        made.postpone(message, until)
    assert len(made._due) <= 2 * len(made.in_flight) + 65, "no caller sees times that are passed over"
    assert made.next_due_ms() == 9_999


def test_the_table_asks_where_a_new_group_begins() -> None:
    table = DeliveryTable(lambda topic, queue_id: 40 + queue_id)
    assert table.known(QueueKey("g", "t", 2)) is None
    made = table.queue(QueueKey("g", "t", 2))
    assert made.cursor == 42
    assert table.queue(QueueKey("g", "t", 2)) is made is table.known(QueueKey("g", "t", 2))
    restored = table.restore(QueueKey("g", "t", 2), 50)
    assert restored is made
    assert made.cursor == 50
    assert table.restore(QueueKey("h", "t", 0), 3).cursor == 3
    assert len(list(table.queues())) == 2


def due_by(table: DeliveryTable, now: int) -> list[QueueKey]:
    found = []
    while (made := table.pop_due(now)) is not None:
        found.append(made.key)
    return found


def test_the_table_names_queues_when_they_are_due() -> None:
    table = DeliveryTable(lambda topic, queue_id: 0)
    keys = [QueueKey("g", "t", n) for n in range(3)]
    for key, until in zip(keys, (300, 100, 200), strict=True):
        deliver(table.queue(key), flying(0, until))
    assert table.next_due_ms() == 100
    assert due_by(table, 99) == []
    assert due_by(table, 200) == [keys[1], keys[2]]
    assert table.next_due_ms() == 300
    assert due_by(table, 200) == []


def test_a_queue_is_named_again_only_when_scheduled_again() -> None:
    table = DeliveryTable(lambda topic, queue_id: 0)
    made = table.queue(KEY)
    deliver(made, flying(0, 100))
    made.postpone(made.in_flight[0], 50)
    assert due_by(table, 50) == [KEY]
    made.postpone(made.in_flight[0], 100)
    assert due_by(table, 100) == [KEY], "the stale entry for 100 and the new one are one"
    assert due_by(table, 1 << 62) == []
    table.schedule(made)
    assert due_by(table, 100) == [KEY], "it is still due"


class Model(RuleBasedStateMachine):
    """Against a dictionary: what is in flight, until when, and everything else settled."""

    def __init__(self) -> None:
        super().__init__()
        self.state = QueueDelivery(KEY, 0)
        self.expected: dict[int, tuple[int, int]] = {}
        self.next = 0
        self.ids = 0
        self.now = 0

    def _pick(self, number: int) -> int:
        return sorted(self.expected)[number % len(self.expected)]

    @rule(gap=st.integers(0, 2), invisible=st.integers(1, 50))
    def deliver_new(self, gap: int, invisible: int) -> None:
        offset = self.next + gap
        self.next = offset + 1
        self._deliver(offset, invisible, 1)

    def _deliver(self, offset: int, invisible: int, attempt: int) -> None:
        self.ids += 1
        deliver(self.state, flying(offset, self.now + invisible, self.ids, attempt))
        self.expected[offset] = (self.ids, self.now + invisible)

    @rule(number=st.integers(0, 99), stale=st.booleans())
    def settle(self, number: int, stale: bool) -> None:
        if self.expected:
            offset = self._pick(number)
            assert settle(self.state, offset, self.expected[offset][0] - stale) != stale
            if not stale:
                del self.expected[offset]

    @rule(number=st.integers(0, 99), invisible=st.integers(0, 50))
    def postpone(self, number: int, invisible: int) -> None:
        if self.expected:
            offset = self._pick(number)
            self.state.postpone(self.state.in_flight[offset], self.now + invisible)
            self.expected[offset] = (self.expected[offset][0], self.now + invisible)

    @rule(passed=st.integers(0, 60), invisible=st.integers(1, 50))
    def redeliver(self, passed: int, invisible: int) -> None:
        self.now += passed
        due = {offset for offset, (_, until) in self.expected.items() if until <= self.now}
        self.ids += 1
        assert set(redeliver(self.state, self.now, self.now + invisible, self.ids)) == due
        for offset in due:
            self.expected[offset] = (self.ids, self.now + invisible)

    @invariant()
    def agrees(self) -> None:
        assert list(self.state.in_flight) == sorted(self.expected)
        assert self.state.cursor == self.next
        assert self.state.committed == min(self.expected, default=self.next)
        assert self.state.next_due_ms() == min((until for _, until in self.expected.values()), default=None)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=rounds(20, 600), stateful_step_count=40, deadline=None)


def test_who_was_turned_away_is_told_once_of_room() -> None:
    made = state(0)
    assert made.room(2) == 1
    assert not made.freed()
    deliver(made, flying(1))
    assert made.room(2) == made.room(1) == 0
    assert made.freed()
    assert not made.freed()


@pytest.mark.parametrize("told_ms", [0, 100])
def test_a_message_was_delivered_first_when_the_earliest_of_what_is_replayed_says(told_ms: int) -> None:
    """A snapshot's piece that tells of the first delivery stands behind the second one, as the log has it."""
    made = QueueDelivery(KEY, 1)
    made.restore(flying(0, attempt=2, delivered_ms=200))
    made.restore(flying(0, attempt=2, earlier_ms=told_ms))
    assert made.in_flight[0].first_delivered_ms == (told_ms or 200)
    made.restore(flying(0, attempt=3, delivered_ms=300))
    assert made.in_flight[0].first_delivered_ms == (told_ms or 200)
