"""A line in which addresses take turns."""

from __future__ import annotations

import pytest

from broker_gateway.runtime.fair_queue import FairQueue


def test_addresses_take_turns_in_a_line() -> None:
    line: FairQueue[int] = FairQueue()
    for number in range(5):
        line.append("hostile", number)
    line.append("honest", 10)
    assert (len(line), list(line)) == (6, [0, 1, 2, 3, 4, 10])
    assert [line.pop(), line.pop()] == [0, 10]
    line.append("honest", 11)
    assert [line.pop() for _ in range(len(line))] == [1, 11, 2, 3, 4]
    with pytest.raises(KeyError):
        line.pop()
