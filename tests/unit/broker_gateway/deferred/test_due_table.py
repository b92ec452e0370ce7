"""What is due when: the table gives what a plain list would, however entries come and go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from broker_gateway.deferred import due_table
from broker_gateway.deferred.due_table import Columns, DueTable, key_of, offset_of, queue_of
from tests.suite.evidence import rounds


def size_of(key: int) -> int:
    return 100 + key % 5000


class TableMachine(RuleBasedStateMachine):
    """Beside a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.table = DueTable()
        self.known: dict[int, tuple[int, int]] = {}
        self.sizes: dict[int, int] = {}
        self.next = 0

    @rule(dues=st.lists(st.integers(0, 50), min_size=1, max_size=30), mark=st.integers(0, 3))
    def add(self, dues: list[int], mark: int) -> None:
        for due in dues:
            key = key_of(self.next % 3, self.next)
            self.next += 1
            self.sizes[key] = size_of(key)
            self.table.add(due, key, mark, self.sizes[key])
            self.known[key] = due, mark

    @rule(dues=st.lists(st.integers(0, 50), min_size=1, max_size=30))
    def add_many(self, dues: list[int]) -> None:
        keys = [key_of(1, self.next + number) for number in range(len(dues))]
        self.next += len(dues)
        self.sizes |= {key: size_of(key) for key in keys}
        sizes = np.array([self.sizes[key] for key in keys], np.uint32)
        self.table.add_columns(Columns(np.array(dues), np.array(keys), np.zeros(len(dues), np.uint32), sizes))
        self.known.update({key: (due, 0) for key, due in zip(keys, dues, strict=True)})

    @rule(now=st.integers(0, 60), most=st.integers(1, 20))
    def take(self, now: int, most: int) -> None:
        found = self.table.due_until(now, most)
        due = sorted(each for each, _ in self.known.values() if each <= now)
        assert [self.known[key][0] for key in found] == due[:most]
        for queue in range(3):
            of_queue = [(self.known[key][0], key) for key in found if queue_of(key) == queue]
            assert of_queue == sorted(of_queue), "those of the same ms go as they came"
        self.remove(found)

    @rule(data=st.data())
    def remove_any(self, data: st.DataObject) -> None:
        if self.known:
            key = data.draw(st.sampled_from(sorted(self.known)))
            self.remove([key])

    def remove(self, keys: list[int]) -> None:
        self.table.remove(keys, sum(self.sizes[key] for key in keys))
        for key in keys:
            del self.known[key]

    @rule(first=st.integers(0, 50), span=st.integers(0, 10), mark=st.integers(0, 3))
    def find(self, first: int, span: int, mark: int) -> None:
        wanted = {k for k, (due, its) in self.known.items() if first <= due <= first + span and its == mark}
        assert set(self.table.find(first, first + span, mark)) == wanted

    @rule(limit=st.integers(0, 200))
    def below(self, limit: int) -> None:
        wanted = {key for key in self.known if queue_of(key) == 1 and offset_of(key) < limit}
        assert set(self.table.below({1: limit}, 10_000)) == wanted

    @invariant()
    def agrees(self) -> None:
        assert len(self.table) == len(self.known)
        assert self.table.next_due() == min((due for due, _ in self.known.values()), default=None)
        columns = self.table.columns()
        assert dict(zip(columns.key.tolist(), columns.due.tolist(), strict=True)) == {
            key: due for key, (due, _) in self.known.items()
        }
        assert (np.diff(columns.due) >= 0).all()
        found = dict(zip(columns.key.tolist(), columns.size.tolist(), strict=True))
        assert found == {key: self.sizes[key] for key in self.known}
        assert self.table.bytes == sum(found.values())


@pytest.fixture(autouse=True)
def small_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(due_table, "HEAP_ENTRIES", 16)


TableMachine.TestCase.settings = settings(max_examples=rounds(15, 600), stateful_step_count=40, deadline=None)
TestTable = TableMachine.TestCase


@given(queue=st.integers(0, due_table.MAX_QUEUES - 1), offset=st.integers(0, (1 << 44) - 1))
def test_a_key_is_its_queue_and_offset(queue: int, offset: int) -> None:
    key = key_of(queue, offset)
    assert (queue_of(key), offset_of(key)) == (queue, offset)
    assert key < 1 << 63


def test_a_million_entries_have_few_runs_and_little_memory() -> None:
    table = DueTable()
    random = np.random.default_rng(1)
    for part in range(200):
        due = random.integers(0, 1 << 40, 5000)
        keys = np.arange(5000) + part * 5000
        table.add_columns(Columns(due, keys, np.zeros(5000, np.uint32), np.full(5000, 4000, np.uint32)))
    assert len(table) == 1_000_000
    # the work of a look and the memory grow with these, and no caller sees them
    assert len(table._runs) <= 21
    taken = 0
    while taken < 20_000:
        keys_due = table.due_until(1 << 40, 256)
        table.remove(keys_due, 4000 * len(keys_due))
        taken += len(keys_due)
    assert len(table) == 1_000_000 - taken
    assert table.bytes == 4000 * len(table)
    assert not table._removed, "what is taken in order leaves nothing behind"


def test_what_is_taken_back_leaves_little_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers may recall as many messages as they send: those do not count among the pending, and may be due in years."""
    monkeypatch.setattr(due_table, "_MOST_IN_A_RUN", 64)
    table = DueTable()
    for number in range(100):
        # before its run's others, so that they do not come to its head
        table.add(1000 + number, number * 1000, 0, 7)
        keys = [number * 1000 + 1 + each for each in range(64)]
        for key in keys:
            table.add(1_000_000 + key, key, 0, 7)
        for key in keys:
            table.remove([key], 7)
    assert (len(table), table.bytes) == (100, 700)
    assert table.due_until(1 << 40, 1000) == [number * 1000 for number in range(100)]
    assert len(table.columns().key) == 100
    assert sum(map(len, table._runs)) + len(table._heap) <= 400
    assert len(table._removed) <= 300
    assert len(table._runs) <= 10
