"""Answers kept until the route table changes. Time is a number that the test moves."""

from __future__ import annotations

import tracemalloc

import pytest

from broker_gateway.nameserver import answers as module
from broker_gateway.nameserver.answers import Answers
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.errors import RequestError


class Query:
    """Counts how often it is worked out."""

    def __init__(self, size: int = 0) -> None:
        self.count = 0
        self._size = size

    def __call__(self) -> Query:
        self.count += 1
        return self

    def encode(self) -> bytes:
        return b"%d" % self.count + bytes(self._size)


@pytest.fixture
def table() -> RouteTable:
    return RouteTable(lambda: 0)


def test_worked_out_once_until_the_table_changes(table: RouteTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FREE_NS", 1 << 60)
    answers, query, other = Answers(table), Query(), Query()
    assert [answers.body("a", query) for _ in range(3)] == [b"1"] * 3
    assert answers.body("b", other) == b"1"
    table.version += 1
    assert [answers.body("a", query) for _ in range(3)] == [b"2"] * 3


def test_one_body_of_a_kind(table: RouteTable) -> None:
    answers, query = Answers(table), Query()
    assert [answers.body("a", query, about) for about in ("x", "x", "y", "y", "x")] == [
        b"1",
        b"1",
        b"2",
        b"2",
        b"3",
    ]


def test_a_costly_one_is_worked_out_for_a_tenth_of_the_time(
    table: RouteTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FREE_NS", -1)
    monkeypatch.setattr(module, "_SHARE", 1 << 50)
    now = 0
    answers, query = Answers(table, lambda: now), Query()
    for _ in range(3):
        assert answers.body("a", query) == b"1"
        table.version += 1
    now = 1 << 100
    assert answers.body("a", query) == b"2"


def test_one_that_fits_no_frame_is_refused_and_not_kept(table: RouteTable) -> None:
    answers, query = Answers(table), Query(size=module.MAX_FRAME)
    tracemalloc.start()
    try:
        for _ in range(2):
            with pytest.raises(RequestError, match="more than a frame"):
                answers.body("a", query)
        held, _most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert query.count == 1
    assert held < module.MAX_FRAME
