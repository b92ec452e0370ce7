"""Who waits, and who is served when something arrives: in line, each in its own group, one fault no other's."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.delivery.wakeups import Wakeups


class Lines:
    """Wakeups over an event loop that the test runs; `has` is how much each group may still have."""

    def __init__(self, **has: int) -> None:
        self.scheduled: list[Callable[[], None]] = []
        self.offered: list[tuple[str, int]] = []
        self.served: list[str] = []
        self.has = has
        self.wakeups: Wakeups[str] = Wakeups(self.scheduled.append, lambda *queue: self.offered.append(queue))
        self.wakeups.serve_by(self.serve)

    def serve(self, waiter: str) -> bool:
        if waiter == "faulty":
            raise ZeroDivisionError("of the test")
        group = waiter[0]
        if not self.has.get(group):
            return False
        self.has[group] -= 1
        self.served.append(waiter)
        return True

    def enter(self, *waiters: str) -> None:
        for each in waiters:
            self.wakeups.enter("t", each[0], each)

    def run(self) -> None:
        ready, self.scheduled[:] = self.scheduled.copy(), []
        for work in ready:
            work()


def test_those_of_a_group_are_served_in_line_until_one_goes_away_with_nothing() -> None:
    lines = Lines(g=2)
    lines.enter("g1", "g2", "g3", "g4")
    lines.wakeups.arrived("t", [0, 1])
    assert lines.offered == [("t", 0), ("t", 1)]
    assert len(lines.scheduled) == 1, "one callback for all that arrives in a tick"
    lines.run()
    assert (lines.served, lines.wakeups.waiting) == (["g1", "g2"], 2)
    lines.has["g"] = 1
    lines.wakeups.due("t", "g")
    lines.run()
    assert lines.served[-1] == "g4", "who looked in vain went to the end of the line"


def test_an_arrival_serves_every_group_and_a_due_message_its_own() -> None:
    lines = Lines(g=1, h=1)
    lines.enter("g1", "h1")
    lines.wakeups.due("t", "h")
    lines.run()
    assert lines.served == ["h1"]
    lines.enter("h2")
    lines.has["h"] = 1
    lines.wakeups.arrived("t", [0])
    lines.run()
    assert sorted(lines.served) == ["g1", "h1", "h2"]


def test_nothing_is_scheduled_for_nobody() -> None:
    lines = Lines(g=1)
    lines.wakeups.arrived("t", [0])
    lines.wakeups.due("t", "g")
    assert lines.scheduled == []
    assert lines.offered == [("t", 0)], "it is noted all the same"


def test_who_left_is_not_served_and_leaving_twice_is_nothing() -> None:
    lines = Lines(g=9)
    waiters = ["g1", "g2"]
    lines.enter(*waiters)
    for _ in range(2):
        lines.wakeups.leave("t", "g", waiters[0])
    lines.wakeups.leave("other", "g", waiters[1])
    assert list(lines.wakeups.all()) == ["g2"]
    lines.wakeups.due("t", "g")
    lines.run()
    assert (lines.served, lines.wakeups.waiting) == (["g2"], 0)
    lines.wakeups.due("t", "g")
    assert lines.scheduled == [], "nobody stands there"


def test_a_fault_of_one_costs_no_other() -> None:
    lines = Lines(f=9, g=9)
    lines.wakeups.enter("t", "g", "faulty")
    lines.enter("g1")
    lines.wakeups.arrived("t", [0])
    lines.run()
    assert (lines.served, lines.wakeups.waiting) == (["g1"], 0)


def test_many_are_served_in_several_ticks() -> None:
    lines = Lines(g=1000)
    waiters = [f"g{number}" for number in range(600)]
    lines.enter(*waiters)
    lines.wakeups.arrived("t", [0])
    ticks = 0
    while lines.scheduled:
        lines.run()
        ticks += 1
    assert ticks == 3, "256 in each"
    assert lines.served == waiters
