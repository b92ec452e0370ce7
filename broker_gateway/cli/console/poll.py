"""One poll for all tabs: each kind of fact at its own interval, on a thread of its own, so that what is slow delays nothing else.

| fact | asked every |
|---|---|
| brokers, rates; lag of groups that a tab shows, or of all where they are few; topics that a tab shows | interval |
| scheduled tasks | 3 intervals |
| how far the lake is; queues of a group that a tab shows | 3 intervals |
| names of topics and groups | 5 intervals |

A question that takes long is asked less often: at most a tenth of the time goes to it, whatever tabs begin to show. Without tabs
gateways are asked every `_IDLE_S`, so that there is a history when one comes; of a lake alone nothing is asked then, since it has
its own.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Broker, Freshness, Names, Task, TopicStatus
from broker_gateway.cli.console.history import History
from broker_gateway.cli.questions.rows import Row
from broker_gateway.runtime.clock import now_ms

T = TypeVar("T")
MOST_WATCHED = 200
"""Groups or topics that are asked for one by one; of more that tabs show, the next ones each time."""
_FEW = 50
"""Groups whose lag is taken down though no tab shows them."""
_IDLE_S = 30.0
_SHARE = 10.0


@dataclass(slots=True)
class Fact(Generic[T]):
    """What was answered last. `error` is why the newest question was not; `value` is then that of before."""

    value: T
    at_s: float | None = None
    """When it was answered, by the monotonic clock."""
    error: str = ""
    said: tuple[str, ...] = ()
    """What the answer lacks."""

    def age_s(self) -> float | None:
        """None before the first answer."""
        return None if self.at_s is None else time.monotonic() - self.at_s


@dataclass(slots=True)
class Watched:
    """What one tab shows."""

    groups: frozenset[str] = field(default_factory=frozenset)
    queues_of: str = ""
    """A group of which it shows each queue."""
    topics: frozenset[str] = field(default_factory=frozenset)


class Queues(NamedTuple):
    """Of a group: rows of `LAG` and what they lack, or why there are none."""

    rows: tuple[Row, ...]
    error: str = ""
    said: tuple[str, ...] = ()


class _Turns:
    """Of more names than are asked for at a time, the next ones each time, from the first on again behind the last."""

    def __init__(self) -> None:
        self._last = ""

    def next(self, names: Collection[str]) -> list[str]:
        ordered = sorted(names)
        if len(ordered) <= MOST_WATCHED:
            return ordered
        at = bisect_right(ordered, self._last)
        taken = (ordered[at:] + ordered[:at])[:MOST_WATCHED]
        self._last = taken[-1]
        return taken


class Poll:
    """Begins with `start`. Pages read its facts, and say with `watched` what they show."""

    def __init__(self, places: Places, interval_s: float) -> None:
        self._places = places
        self._interval_s = interval_s
        self._tabs: dict[str, Watched] = {}
        self._stopped = threading.Event()
        self._soon: dict[str, threading.Event] = {}
        self._lag_turns, self._queues_turns, self._topics_turns = _Turns(), _Turns(), _Turns()
        self.history = History()
        self.brokers: Fact[tuple[Broker, ...]] = Fact(())
        self.tasks: Fact[tuple[Task, ...]] = Fact(())
        self.names: Fact[Names] = Fact(Names())
        self.lag: Fact[dict[str, list[Row]]] = Fact({})
        """Rows of `TOTALS`, by group."""
        self.queues: Fact[dict[str, Queues]] = Fact({})
        """Of groups that tabs show."""
        self.topics: Fact[dict[str, TopicStatus]] = Fact({})
        self.freshness: Fact[tuple[Freshness, ...]] = Fact(())

    def start(self) -> None:
        """Begins to ask."""
        with_brokers = self._places.reached is not None
        if with_brokers:
            self._begin("brokers", 1, self.brokers, self._ask_brokers)
            self._begin("tasks", 3, self.tasks, self._places.tasks)
        if self._places.lake is not None:
            self._begin("freshness", 3, self.freshness, self._places.freshness)
        self._begin("names", 5, self.names, self._places.names)
        self._begin("lag", 1, self.lag, self._ask_lag)
        self._begin("queues", 3, self.queues, self._ask_queues)
        self._begin("topics", 1, self.topics, self._ask_topics)

    def stop(self) -> None:
        """Asks nothing more; a question under way ends by itself."""
        self._stopped.set()
        for each in self._soon.values():
            each.set()

    def watched(self, tab: str, what: Watched) -> None:
        """What a tab shows from now on; a change is asked for at once, and everything when it is the only tab."""
        before = self._tabs.get(tab)
        if before == what:
            return
        first = not self._tabs
        self._tabs[tab] = what
        for name, soon in self._soon.items():
            if first or name in ("lag", "queues", "topics"):
                soon.set()

    def left(self, tab: str) -> None:
        """A tab is gone."""
        self._tabs.pop(tab, None)

    @property
    def tabs(self) -> int:
        """How many there are."""
        return len(self._tabs)

    def _begin(self, name: str, times: int, fact: Fact[T], ask: Callable[[], T]) -> None:
        soon = self._soon[name] = threading.Event()
        threading.Thread(
            target=self._run,
            args=(times * self._interval_s, fact, ask, soon),
            daemon=True,
            name=f"poll-{name}",
        ).start()

    def _run(self, interval_s: float, fact: Fact[T], ask: Callable[[], T], soon: threading.Event) -> None:
        if self._places.reached is None:
            soon.wait()
        while not self._stopped.is_set():
            soon.clear()
            began = time.monotonic()
            try:
                with self._places.hearing() as said:
                    fact.value = ask()
                fact.at_s, fact.error, fact.said = time.monotonic(), "", tuple(said)
            except AskError as error:
                fact.error = str(error)
            except Exception as error:  # else the page would show for ever what was
                fact.error = f"{type(error).__name__}: {error}"
            ended = time.monotonic()
            rest_s = (ended - began) * _SHARE
            if self._tabs or self._places.reached is not None:
                soon.wait(max(interval_s if self._tabs else _IDLE_S, rest_s))
            else:
                soon.wait()
            self._stopped.wait(max(ended + rest_s - time.monotonic(), 0))  # a tab does not shorten it

    def _ask_brokers(self) -> tuple[Broker, ...]:
        found = self._places.brokers()
        there = [each for each in found if not each.error]
        if there:
            self.history.take_rates(
                now_ms(), sum(each.in_rate for each in there), sum(each.out_rate for each in there)
            )
        elif found:
            raise AskError(found[0].error)
        return found

    def _ask_lag(self) -> dict[str, list[Row]]:
        names = self.names.value
        groups = {group for tab in list(self._tabs.values()) for group in tab.groups}
        if len(names.groups) <= _FEW:
            groups |= {group.name for group in names.groups}
        asked = self._lag_turns.next(groups)
        if not asked:
            return {}
        rows = self._places.lag(asked, names)
        self.history.take_lag(now_ms(), rows)
        found: dict[str, list[Row]] = {group: [] for group in asked}
        for row in rows:
            found.setdefault(row["consumer_group"], []).append(row)
        return _kept(self.lag.value, groups, asked) | found

    def _ask_queues(self) -> dict[str, Queues]:
        groups = {tab.queues_of for tab in list(self._tabs.values()) if tab.queues_of}
        asked = self._queues_turns.next(groups)
        return _kept(self.queues.value, groups, asked) | {group: self._queues_of(group) for group in asked}

    def _queues_of(self, group: str) -> Queues:
        try:
            found = self._places.lag_of(group)
            return Queues(found.rows, said=found.said)
        except AskError as error:
            return Queues((), str(error))

    def _ask_topics(self) -> dict[str, TopicStatus]:
        topics = {topic for tab in list(self._tabs.values()) for topic in tab.topics}
        asked = self._topics_turns.next(topics)
        if not asked:
            return {}
        return _kept(self.topics.value, topics, asked) | self._places.topic_status(asked)


def _kept(before: dict[str, T], names: Collection[str], asked: Collection[str]) -> dict[str, T]:
    """Answers about those names whose turn it is not."""
    kept = set(names).difference(asked)
    return {name: value for name, value in before.items() if name in kept}
