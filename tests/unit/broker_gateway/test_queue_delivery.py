"""Delivery state of a group on a queue, and the table of them: no IO, no clock."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey
from broker_gateway.delivery.table import DeliveryTable

KEY = QueueKey("g", "t", 0)


def flying(offset: int, until: int = 100, delivery_id: int = 1, attempt: int = 1) -> InFlight:
    return InFlight(offset, attempt, until, delivery_id, f"m{offset}", "client")


def state(*offsets: int, cursor: int = 0) -> QueueDelivery:
    made = QueueDelivery(KEY, cursor)
    for offset in offsets:
        made.deliver(flying(offset))
    return made


def test_nothing_in_flight_commits_the_cursor() -> None:
    assert state(cursor=7).committed == 7
    assert state(cursor=7).next_due_ms() is None
    assert state(cursor=7).pop_due(1 << 62) is None


def test_committed_is_the_first_offset_in_flight() -> None:
    made = state(5, 6, 9, cursor=5)
    assert (made.cursor, made.committed) == (10, 5)
    assert made.settle(6, 1) is not None
    assert made.committed == 5
    assert made.settle(5, 1) is not None
    assert made.committed == 9
    assert made.settle(9, 1) is not None
    assert made.committed == made.cursor == 10


def test_only_the_last_delivery_id_settles() -> None:
    made = state(0)
    assert made.settle(0, 2) is None
    assert made.settle(1, 1) is None
    made.deliver(flying(0, until=300, delivery_id=2, attempt=2))
    assert made.find(0, 1) is None
    assert made.settle(0, 1) is None
    found = made.find(0, 2)
    assert found is not None
    assert made.settle(0, 2) is found
    assert made.settle(0, 2) is None
    assert made.find(0, 2) is None


def test_a_redelivery_keeps_its_place_and_the_cursor() -> None:
    made = state(0, 1, 2)
    made.deliver(flying(1, until=500, delivery_id=2, attempt=2))
    assert made.cursor == 3
    assert list(made.in_flight) == [0, 1, 2]
    made.settle(0, 1)
    assert made.committed == 1


def test_messages_are_due_at_their_time_the_earliest_first() -> None:
    made = QueueDelivery(KEY, 0)
    for offset, until in enumerate((300, 100, 200)):
        made.deliver(flying(offset, until))
    assert made.next_due_ms() == 100
    assert made.pop_due(99) is None
    due = [made.pop_due(250), made.pop_due(250), made.pop_due(250)]
    assert [message and message.queue_offset for message in due] == [1, 2, None]
    assert made.next_due_ms() == 300
    assert list(made.in_flight) == [0, 1, 2], "due messages stay in flight"


def test_postponing_moves_the_due_time_both_ways() -> None:
    made = state(0)
    message = made.in_flight[0]
    made.postpone(message, 500)
    assert made.pop_due(499) is None
    made.postpone(message, 50)
    assert made.next_due_ms() == 50
    assert made.pop_due(50) is message
    assert made.pop_due(1000) is None, "the old times count no longer"
    made.postpone(message, 60)
    assert made.pop_due(60) is message


def test_a_settled_message_is_never_due() -> None:
    made = state(0, 1)
    made.settle(0, 1)
    assert made.pop_due(100) is made.in_flight[1]
    assert made.pop_due(100) is None


def test_ready_messages_come_back_in_order_without_those_that_changed() -> None:
    made = state(0, 1, 2, 3)
    while (message := made.pop_due(100)) is not None:
        made.make_ready(message)
    made.settle(0, 1)
    made.postpone(made.in_flight[1], 1000)
    made.deliver(flying(2, until=1000, delivery_id=2, attempt=2))
    assert made.pop_ready(100) is made.in_flight[3]
    assert made.pop_ready(100) is None


def test_a_message_ready_twice_is_delivered_once() -> None:
    made = state(0)
    message = made.in_flight[0]
    made.postpone(message, 100)
    while (due := made.pop_due(100)) is not None:
        made.make_ready(due)
    assert made.pop_ready(100) is message
    made.deliver(flying(0, until=200, delivery_id=2, attempt=2))
    assert made.pop_ready(200) is None


def test_replay_in_any_order_ends_sorted() -> None:
    made = QueueDelivery(KEY, 10)
    for offset in (7, 3, 9):
        made.restore(flying(offset, until=100 + offset))
    made.sort()
    assert list(made.in_flight) == [3, 7, 9]
    assert (made.cursor, made.committed, made.next_due_ms()) == (10, 3, 103)


def test_reset_forgets_everything_in_flight() -> None:
    made = state(0, 1, 2)
    due = made.pop_due(100)
    assert due is not None
    made.make_ready(due)
    made.reset(1)
    assert (made.cursor, made.committed, made.next_due_ms(), made.pop_ready(1 << 62)) == (1, 1, None, None)
    assert made.settle(0, 1) is None


def test_times_of_settled_messages_do_not_pile_up() -> None:
    made = state(0)
    message = made.in_flight[0]
    for until in range(10_000):
        made.postpone(message, until)
    assert len(made._due) <= 2 * len(made.in_flight) + 65
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


def test_the_table_names_queues_when_they_are_due() -> None:
    table = DeliveryTable(lambda topic, queue_id: 0)
    keys = [QueueKey("g", "t", n) for n in range(3)]
    for key, until in zip(keys, (300, 100, 200), strict=True):
        made = table.queue(key)
        made.deliver(flying(0, until))
        table.schedule(made)
    assert table.next_due_ms() == 100
    assert table.pop_due(99) == []
    assert [found.key for found in table.pop_due(200)] == [keys[1], keys[2]]
    assert table.next_due_ms() == 300
    assert table.pop_due(200) == []


def test_a_queue_is_named_again_only_when_scheduled_again() -> None:
    table = DeliveryTable(lambda topic, queue_id: 0)
    made = table.queue(KEY)
    made.deliver(flying(0, 100))
    table.schedule(made)
    made.postpone(made.in_flight[0], 50)
    table.schedule(made)
    assert table.pop_due(50) == [made]
    made.postpone(made.in_flight[0], 100)
    table.schedule(made)
    assert table.pop_due(100) == [made], "the stale entry for 100 and the new one are one"
    assert table.pop_due(1 << 62) == []


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
        self.state.deliver(flying(offset, self.now + invisible, self.ids, attempt))
        self.expected[offset] = (self.ids, self.now + invisible)

    @rule(number=st.integers(0, 99), stale=st.booleans())
    def settle(self, number: int, stale: bool) -> None:
        if self.expected:
            offset = self._pick(number)
            found = self.state.settle(offset, self.expected[offset][0] - stale)
            assert (found is None) == stale
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
        while (message := self.state.pop_due(self.now)) is not None:
            self.state.make_ready(message)
        due = {offset for offset, (_, until) in self.expected.items() if until <= self.now}
        found = []
        while (message := self.state.pop_ready(self.now)) is not None:
            found.append(message.queue_offset)
            self._deliver(message.queue_offset, invisible, message.attempt + 1)
        assert sorted(found) == sorted(due)

    @invariant()
    def agrees(self) -> None:
        assert list(self.state.in_flight) == sorted(self.expected)
        assert self.state.cursor == self.next
        assert self.state.committed == min(self.expected, default=self.next)
        assert self.state.next_due_ms() == min((until for _, until in self.expected.values()), default=None)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_who_was_turned_away_is_told_once_of_room() -> None:
    made = QueueDelivery(KEY, 0)
    made.deliver(flying(0))
    assert made.room(2) == 1
    assert not made.freed()
    made.deliver(flying(1))
    assert made.room(2) == made.room(1) == 0
    assert made.freed()
    assert not made.freed()
