"""How a batch is divided among logs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from structured_streaming.source.shares import fair_shares


def test_small_backlogs_are_served_whole_and_the_others_alike() -> None:
    assert fair_shares({"a": 1000, "b": 10, "c": 700}, 300) == {"a": 145, "b": 10, "c": 145}
    assert fair_shares({"a": 1000, "b": 10}, 5000) == {"a": 1000, "b": 10}
    assert fair_shares({"a": 5, "b": 5, "c": 5}, 1) == {"a": 1, "b": 1, "c": 1}
    assert fair_shares({}, 10) == {}


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 1 << 40), max_size=9), st.integers(1, 1 << 40))
def test_nobody_is_left_out_and_nothing_is_wasted(backlogs: dict[str, int], room: int) -> None:
    shares = fair_shares(backlogs, room)
    assert shares.keys() == backlogs.keys()
    assert all(0 < share <= backlogs[name] for name, share in shares.items())
    assert sum(shares.values()) <= max(room, len(backlogs))
    if sum(backlogs.values()) > room >= len(backlogs):
        assert sum(shares.values()) > room - len(backlogs)
        greatest = max(shares.values())
        assert all(share == backlogs[name] or share >= greatest - 1 for name, share in shares.items())
