"""What a look at the name servers changes of the logs that are read; folders stand for brokers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lakebroker_testing.logs import written
from store.log_source import LogState
from structured_streaming.source.access import Access
from structured_streaming.source.log_watch import LogWatch
from structured_streaming.source.membership import Membership
from structured_streaming.source.name_servers import Found


class Looks:
    """Takes the place of name servers and of whoever asks them again and again."""

    def __init__(self, found: Found) -> None:
        self.found = found

    def look(self) -> Found:
        return self.found

    newest = look


class Watched:
    """A watch, what was noted, and a membership that looked once, and found these."""

    def __init__(self, **known: str) -> None:
        self.notes: list[str] = []
        self.looks = Looks(Found(known, {}))
        self.watch = LogWatch((), Access(), self.notes.append, 60.0)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("NameServers", "Following"):
                patch.setattr(f"structured_streaming.source.membership.{name}", lambda _: self.looks)
            self.membership = Membership(["name server"], self.watch, self.notes.append, fixed=False)
            self.membership.update()

    def look(self, left_out: dict[str, str] | None = None, **targets: str) -> set[str]:
        """The targets that are asked after a look that found these."""
        self.looks.found = Found(targets, left_out or {})
        self.membership.update()
        return set(self.watch.targets)

    def fails(self, target: str) -> set[str]:
        """The targets that are asked after it failed."""
        self.watch.rest(target, "it failed")
        return set(self.watch.targets)

    def present(self, count: int) -> dict[str, LogState]:
        """The states that are accepted, once so many logs answered."""
        until = time.monotonic() + 60
        while len(states := self.watch.states()) < count:
            assert time.monotonic() < until, self.watch.missing()
        return self.membership.accepted(states)


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    names = ("broker-a", "broker-b", "broker-a")
    return [f"store:{written(tmp_path / str(number), name, 1)}" for number, name in enumerate(names)]


def test_brokers_that_change_addresses_are_both_read(stores: list[str]) -> None:
    one, two, _ = stores
    watched = Watched(a=one, b=two)
    assert watched.look(a=two, b=one) == {one, two}
    assert set(watched.present(2)) == {one, two}
    assert len(watched.notes) == 2


def test_another_name_at_an_address_takes_it_over(stores: list[str]) -> None:
    one, two, _ = stores
    watched = Watched(a=one)
    assert watched.look(b=one) == {one}
    assert watched.fails(one) == {one}, "it belongs here"
    assert watched.look(b=two) == {two}


def test_one_that_does_not_say_where_it_serves_stays_where_it_was(stores: list[str]) -> None:
    one, two, _ = stores
    watched = Watched(a=one)
    for _look in range(2):
        assert watched.look(
            {"a": "broker a is left out: silent", "c": "broker c is left out: old"}, b=two
        ) == {
            one,
            two,
        }
    assert watched.notes == [f"broker b joined: {two.removeprefix('store:')}", "broker c is left out: old"]


def test_one_that_comes_back_belongs_here_again(stores: list[str]) -> None:
    one, two, _ = stores
    watched = Watched(a=one, b=two)
    watched.present(2)
    assert watched.look(a=one) == {one, two}
    assert watched.look(a=one, b=two) == {one, two}
    assert watched.fails(two) == {one, two}
    assert watched.look(a=one) == {one}
    assert watched.notes[-1].startswith("broker b left the name servers and is no longer asked: it failed")


def test_one_that_joins_under_a_name_that_is_read_is_left_out(stores: list[str]) -> None:
    one, two, double = stores
    watched = Watched(a=one, b=two)
    watched.look(a=one, b=two, c=double)
    assert set(watched.present(3)) == {one, two}
    assert set(watched.watch.targets) == {one, two}
    assert watched.look(a=one, b=two, c=double) == {one, two}
    joined, left_out = watched.notes
    assert joined.startswith("broker c joined")
    assert f"its log is of broker 'broker-a', which is read from {one.removeprefix('store:')}" in left_out
