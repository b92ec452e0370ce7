"""Shares of the event loop's ticks: what an address took too much of it waits for, and nothing is kept of who is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker_gateway.runtime.tick import Stage, Tick
from broker_gateway.transport.http2.pace import ALONE_S, QUANTUM_S, Pace, Share

A_WHILE_S = 0.0001


async def ticks(tick: Tick, count: int) -> None:
    """So many ticks in which there is something to do."""
    for _ in range(count):
        tick.add(Stage.WRITE, lambda: None)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def ticks_until(done: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if done():
            return
        await asyncio.sleep(0)


def left(share: Share) -> float:
    """Seconds of this tick that the address still has."""
    return share.until(0.0)


class Clock:
    """Time that passes where somebody works, and nowhere else."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("broker_gateway.transport.http2.pace.time", made)
    return made


class Backlog:
    """A connection that has more to do than there is time in a tick, `left` times."""

    def __init__(self, host: str, pace: Pace, order: list[str], left: int, clock: Clock) -> None:
        self.host = host
        self._pace, self._order, self._left, self._clock = pace, order, left, clock

    def go_on(self, until: float) -> None:
        self._clock.now = max(self._clock.now, until) + A_WHILE_S
        self._order.append(self.host)
        self._left -= 1
        if self._left:
            self._pace.defer(self)


def test_addresses_take_turns_however_many_connections_one_has(clock: Clock) -> None:
    async def run() -> list[str]:
        pace, order = Pace(Tick()), list[str]()
        for _ in range(50):
            pace.defer(Backlog("one", pace, order, 4, clock))
        pace.defer(Backlog("other", pace, order, 10, clock))
        await ticks_until(lambda: len(order) == 210)
        return order

    order = asyncio.run(run())
    last = max(at for at, host in enumerate(order) if host == "other")
    assert last < 30, "ten times, with as many of the other address between them"


def test_an_address_that_waits_longer_costs_a_turn_the_same_however_many_connections_it_has(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> int:
        pace, order = Pace(Tick()), list[str]()
        for _ in range(5000):
            pace.defer(Backlog("one", pace, order, 1, clock))
        asked = 0
        until = Share.until

        def counted(share: Share, now: float) -> float:
            nonlocal asked
            asked += 1
            return until(share, now)

        monkeypatch.setattr(Share, "until", counted)
        pace.share("one").took(1.0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not order
        return asked

    assert asyncio.run(run()) < 50


def test_an_address_that_took_too_much_of_a_turn_waits_longer(clock: Clock) -> None:
    async def run() -> list[str]:
        pace, order = Pace(Tick()), list[str]()
        pace.share("one").took(1.0)
        pace.defer(Backlog("one", pace, order, 1, clock))
        pace.defer(Backlog("other", pace, order, 100, clock))
        await ticks_until(lambda: len(order) == 101)
        return order

    order = asyncio.run(run())
    assert order == ["other"] * 100 + ["one"]


def test_an_address_that_is_alone_has_more_of_a_turn() -> None:
    async def run() -> None:
        tick = Tick()
        pace = Pace(tick)
        one, other = pace.share("one"), pace.share("other")
        assert left(one) == ALONE_S
        assert left(other) == QUANTUM_S
        assert left(one) == QUANTUM_S, "in the same tick"
        await ticks(tick, 1)
        assert left(one) == QUANTUM_S, "there were two in the tick before"
        await ticks(tick, 1)
        assert left(one) == ALONE_S

    asyncio.run(run())


def test_addresses_whose_first_turn_it_is_count() -> None:
    async def run() -> list[float]:
        pace = Pace(Tick())
        return [left(pace.share(f"number {number}")) for number in range(100)]

    assert asyncio.run(run()) == [ALONE_S] + [QUANTUM_S] * 99


def test_what_was_taken_lapses_with_the_turns() -> None:
    async def run() -> None:
        tick = Tick()
        pace = Pace(tick)
        one, other = pace.share("one"), pace.share("other")
        one.until(0.0)
        one.took(0.9 * ALONE_S)  # as much as one may that is alone
        await ticks(tick, 5)
        assert left(other) == ALONE_S
        assert left(one) == QUANTUM_S

    asyncio.run(run())


def test_who_owes_does_not_keep_others_from_being_alone() -> None:
    async def run() -> None:
        tick = Tick()
        pace = Pace(tick)
        gone, other = pace.share("gone"), pace.share("other")
        gone.until(0.0)
        gone.took(1.0)
        pace.leave(gone)
        await ticks(tick, 2)
        assert left(other) == ALONE_S

    asyncio.run(run())


def test_a_debt_outlives_the_connections_and_nothing_else_does() -> None:
    async def run() -> None:
        tick = Tick()
        pace = Pace(tick)
        share = pace.share("one")
        share.until(0.0)
        share.took(0.05)
        pace.leave(share)
        assert pace.share("one") is share
        pace.leave(share)
        for _ in range(200):
            await asyncio.sleep(0)
        assert not tick.scheduled, "nothing is left to wait for"
        # no caller sees the memory that an address leaves behind
        assert not pace._shares
        assert not pace._owing

    asyncio.run(run())


def test_what_was_taken_as_the_last_connection_left_is_owed_by_the_next() -> None:
    """Charged behind the leaving, as by a connection whose calls are ended; no second share stands beside the first."""

    async def run() -> None:
        tick = Tick()
        pace = Pace(tick)
        share = pace.share("one")
        share.until(0.0)
        pace.leave(share)
        share.took(0.05)
        again = pace.share("one")
        assert left(again) < 0
        await ticks(tick, 200)
        assert pace.share("one") is again

    asyncio.run(run())
