"""Prepared statements: found by their handle alone, bounded for a client, in all and in bytes, forgotten when idle."""

from __future__ import annotations

import grpc
import pytest

from structured_streaming.flight.failures import CallError
from structured_streaming.flight.prepared import Bounds, PreparedStatements


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(kept: PreparedStatements, client: str, statement: str = "SELECT 1") -> bool:
    """Whether there is no room for another one; it is added otherwise."""
    try:
        kept.add(client, statement, ())
    except CallError as error:
        return error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    return False


def test_a_client_has_so_many_and_all_have_so_many() -> None:
    kept = PreparedStatements(Bounds(of_client=3, in_all=5))
    handles = [kept.add("a", "SELECT 1", ()) for _ in range(3)]
    assert len(set(handles)) == 3
    assert refused(kept, "a")
    assert not refused(kept, "b")
    assert not refused(kept, "b")
    assert refused(kept, "b")
    kept.close(handles[0])
    kept.close(handles[0])
    assert not refused(kept, "a")
    assert len(kept) == 5


def test_their_bytes_are_bounded_with_the_parameters() -> None:
    kept = PreparedStatements(Bounds(bytes_in_all=1000))
    handle = kept.add("a", "x" * 400, ("1",))
    assert refused(kept, "a", "x" * 601)
    kept.bind(handle, ("v",), 600)
    assert refused(kept, "a", "x")
    kept.bind(handle, ("v",), 500)
    assert not refused(kept, "b", "x" * 100)
    with pytest.raises(CallError, match="1,000 bytes in all"):
        kept.bind(handle, ("v",), 501)
    kept.close(handle)
    assert not refused(kept, "b", "x" * 900)


def test_idle_ones_are_forgotten_and_give_their_room_back() -> None:
    clock = Clock()
    kept = PreparedStatements(Bounds(of_client=2, bytes_in_all=20, idle_s=60), clock)
    used, idle = kept.add("a", "SELECT 1", ()), kept.add("a", "SELECT 2", ())
    clock.now = 50.0
    assert kept.ready(used).statement == "SELECT 1"
    assert refused(kept, "a")
    clock.now = 70.0
    with pytest.raises(CallError, match="prepare it again") as found:
        kept.ready(idle)
    assert found.value.code is grpc.StatusCode.NOT_FOUND
    assert kept.ready(used).statement == "SELECT 1"
    assert not refused(kept, "a")
    clock.now = 1000.0
    assert len(kept) == 0
    assert not refused(kept, "a", "x" * 20)


def test_parameters_are_those_that_were_bound_last() -> None:
    kept = PreparedStatements()
    handle = kept.add("a", "SELECT ?, ?", ("1", "2"))
    with pytest.raises(CallError, match="2 parameters; bind them first"):
        kept.ready(handle)
    with pytest.raises(CallError, match="2 parameters, and 1 columns"):
        kept.bind(handle, ("x",), 1)
    kept.bind(handle, ("x", 1), 1)
    first = kept.ready(handle)
    assert first.parameters == ["x", 1]
    kept.bind(handle, ("y", 2), 1)
    assert kept.ready(handle).parameters == ["y", 2]
    with pytest.raises(CallError, match="bound anew"):
        kept.ready(handle, first.bound)


def test_named_parameters_get_the_columns_in_their_order() -> None:
    kept = PreparedStatements()
    handle = kept.add("a", "SELECT $b, $a", ("b", "a"))
    kept.bind(handle, (1, 2), 1)
    assert kept.ready(handle).parameters == {"b": 1, "a": 2}
