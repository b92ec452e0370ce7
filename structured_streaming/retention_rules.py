"""How long messages stay in a lake, by topic: rules such as `orders=30d,audit-*=10y,*=1y`. Imports nothing of Spark, or of tables.

The first rule that fits a topic's name counts; a topic that none fits keeps its messages for ever. A message goes by when it was
stored, and not to the second: bounds move in steps of a sixteenth of the rule's time, whole days, at least one (UTC). So a
message stays for its time and at most a step more, and a file with old and new messages is rewritten at most once a step.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from structured_streaming.errors import LakeError

FOREVER = "forever"
_STEPS = 16
_DAY = timedelta(days=1)
_DAYS = {"d": 1, "w": 7, "y": 365}
_MOST_DAYS = 100 * 365
_MOST_NAME, _MOST_RULES = 255, 1000
_NAME = re.compile(r"[%|a-zA-Z0-9_*-]+")
"""Of RocketMQ's topics, and stars."""
_TIME = re.compile(r"([0-9]{1,6})([dwy])")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_compiled = functools.lru_cache(maxsize=2 * _MOST_RULES)(re.compile)


class RulesError(LakeError):
    """Rules that are none; the text names the value and the remedy."""


class Rule(NamedTuple):
    """Topics by a pattern, in which a star stands for any text, and how many days their messages stay; None: for ever."""

    pattern: str
    days: int | None

    @property
    def time(self) -> str:
        """As it is written in rules."""
        if self.days is None:
            return FOREVER
        return f"{self.days // 365}y" if self.days % 365 == 0 else f"{self.days}d"

    @property
    def expression(self) -> str:
        """Of the topics that it fits whole, for Python and Java. Each text between stars is taken where it stands first, and never
        elsewhere, so a match takes no longer than topic and pattern are long, multiplied."""
        first, *others = map(re.escape, self.pattern.split("*"))
        if not others:
            return first
        return f"(?s:{first}{''.join(f'(?>.*?{text})' for text in others[:-1] if text)}.*{others[-1]})"

    def fits(self, topic: str) -> bool:
        return _compiled(self.expression).fullmatch(topic) is not None

    def bound(self, now: datetime) -> datetime | None:
        """What was stored before it goes."""
        if self.days is None:
            return None
        step = max(self.days // _STEPS, 1)
        days = (now - _EPOCH) // _DAY - self.days
        return _EPOCH + days // step * step * _DAY


class Rules(NamedTuple):
    """In their order."""

    rules: tuple[Rule, ...]
    text: str

    def bounds(self, now: datetime) -> Bounds:
        """Those of a moment."""
        return Bounds(self, {rule.pattern: rule.bound(now) for rule in self.rules})


class Bounds:
    """By the pattern of each rule, the time before which its messages go; None: none goes."""

    def __init__(self, rules: Rules, by_pattern: Mapping[str, datetime | None]) -> None:
        self.rules = rules
        self.by_pattern = dict(by_pattern)
        self._known: dict[str, datetime | None] = {}

    def of(self, topic: str | None) -> datetime | None:
        """Of a topic; None where all of it stays."""
        if topic is None:
            return None
        if topic not in self._known:
            if len(self._known) > 100_000:
                self._known.clear()
            rule = next((each for each in self.rules.rules if each.fits(topic)), None)
            self._known[topic] = None if rule is None else self.by_pattern.get(rule.pattern)
        return self._known[topic]

    def together(self, other: Bounds) -> Bounds:
        """The later of both, which are of the same rules."""
        found = dict(self.by_pattern)
        for pattern, bound in other.stated():
            known = found.get(pattern)
            found[pattern] = bound if known is None else max(known, bound)
        return Bounds(self.rules, found)

    @property
    def newest(self) -> datetime | None:
        """What was stored then or later stays, of every topic; None where everything does."""
        return max((bound for bound in self.by_pattern.values() if bound is not None), default=None)

    def stated(self) -> list[tuple[str, datetime]]:
        """For a row of `upkeep`."""
        return [(pattern, bound) for pattern, bound in self.by_pattern.items() if bound is not None]


def parsed(text: str) -> Rules:
    """Rules, divided by commas; none of an empty text. Raises RulesError."""
    found: dict[str, Rule] = {}
    for part in text.split(",") if text.strip() else ():
        name, separator, time = (each.strip() for each in part.partition("="))
        if not separator or not name or not time:
            raise RulesError(
                f"{part.strip()!r:.300} is no rule; write PATTERN=TIME, such as orders=30d or audit-*=10y"
            )
        if len(name) > _MOST_NAME or not _NAME.fullmatch(name):
            raise RulesError(
                f"{name!r:.300} is no name of topics; it has letters, digits, %, |, _, - and * for any text, at most {_MOST_NAME}"
            )
        if name in found:
            raise RulesError(f"{name} is there twice; the first rule that fits a topic counts, leave one out")
        hidden = next((each for each in found if Rule(each, None).fits(name)), None)
        if hidden is not None:
            raise RulesError(
                f"{name}={time} never counts: {hidden} stands before it and fits all that it fits; put it before"
            )
        found[name] = Rule(name, _days(name, time))
    if len(found) > _MOST_RULES:
        raise RulesError(f"these are {len(found)} rules, at most {_MOST_RULES} can be; use patterns")
    rules = tuple(found.values())
    return Rules(rules, ",".join(f"{each.pattern}={each.time}" for each in rules))


def _days(name: str, time: str) -> int | None:
    if time == FOREVER:
        return None
    match = _TIME.fullmatch(time)
    days = int(match[1]) * _DAYS[match[2]] if match else 0
    if not 1 <= days <= _MOST_DAYS:
        raise RulesError(f"{name}={time:.100}: write the time as 1d, 2w, 10y or {FOREVER}, at most 100y")
    return days


def latest(several: Iterable[Bounds], topic: str) -> datetime | None:
    """The latest of a topic's bounds."""
    found = [bound for each in several if (bound := each.of(topic)) is not None]
    return max(found, default=None)
