"""Batches are few while nothing gets older than the target, and at once where waiting would gain nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from structured_streaming.source.pacing import Pacing


class Run:
    """A reader whose batches take `batch_s`; time passes only in it."""

    def __init__(self, target_s: float, target_bytes: int = 1 << 20, batch_s: float = 0.2) -> None:
        self.now = 1000.0
        self.batch_s = batch_s
        self.asked = 0
        self.pacing = Pacing(target_s, target_bytes, lambda: self.now, self.sleep)

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds

    def batch(self, appended: Callable[[float], int] = lambda now: 1, *, took_all: bool = True) -> float:
        """Looks, waits, plans and ends a batch; when it began."""
        self.pacing.begun()
        self.pacing.looking()

        def waiting_bytes() -> int:
            self.asked += 1
            self.pacing.looking()
            return appended(self.now)

        self.pacing.gather(waiting_bytes)
        self.pacing.looking()
        began = self.now
        self.pacing.planned(took_all=took_all)
        self.now += self.batch_s
        return began


@pytest.mark.parametrize(("target_s", "batch_s"), [(1.0, 0.2), (1.0, 0.6), (10.0, 0.2), (60.0, 3.0)])
def test_nothing_gets_older_than_the_target(target_s: float, batch_s: float) -> None:
    run = Run(target_s, batch_s=batch_s)
    run.batch()
    begins = [run.batch() for _ in range(20)]
    ages = [after + batch_s - before for before, after in itertools.pairwise(begins)]
    assert max(ages) < target_s or batch_s * 2 > target_s * 0.75, (
        "a record of just behind a look is the oldest"
    )
    assert min(ages) >= min(target_s * 0.7, batch_s * 2), "and batches are no more than that needs"


def test_a_slow_batch_makes_those_behind_it_begin_earlier() -> None:
    run = Run(2.0)
    run.batch()
    run.batch_s = 1.0
    slow = run.batch()
    run.batch_s = 0.2
    following = [run.batch() for _ in range(7)]
    assert following[0] == pytest.approx(slow + 1.0)
    assert following[1] - following[0] == pytest.approx(2.0 * 0.75 - 1.0)


def test_what_is_large_or_was_left_is_read_at_once() -> None:
    run = Run(100.0, target_bytes=5)
    run.batch()
    began = run.now
    assert run.batch(lambda now: 5) == began
    run.batch(lambda now: 5, took_all=False)
    began = run.now
    assert run.batch() == began


def test_what_grows_while_one_waits_ends_the_wait() -> None:
    run = Run(100.0, target_bytes=5)
    run.batch()
    began = run.now
    assert run.batch(lambda now: int((now - began) * 2)) - began == pytest.approx(2.5, abs=0.3)


def test_the_wait_begins_when_the_last_look_found_nothing() -> None:
    run = Run(1.0)
    run.now += 50
    run.pacing.looking()
    run.pacing.nothing_there()
    began = run.now
    assert run.batch() - began == pytest.approx(0.75 - 0.25)


def test_without_a_target_nobody_waits_or_asks() -> None:
    run = Run(0)
    for _ in range(3):
        run.pacing.looking()
        run.pacing.nothing_there()
        began = run.now
        assert run.batch() == began
    assert run.asked == 0
