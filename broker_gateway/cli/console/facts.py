"""What the pages show, as it was answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from broker_gateway.cli.questions.rows import Row


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker; times in seconds, sizes in bytes. What it does not say is None."""

    address: str
    error: str = ""
    """Why it did not answer; everything else is empty then."""
    earlier: bool = False
    """It is of a version without the call that tells of it: there are rates and clients alone."""
    name: str = ""
    cluster: str = ""
    version: str = ""
    role: str = ""
    up_s: float = 0.0
    log_bytes: int = 0
    unflushed_bytes: int = 0
    disk_total: int = 0
    disk_free: int = 0
    hours_left: float | None = None
    behind_bytes: int | None = None
    behind_records: int | None = None
    behind_s: float | None = None
    waiting: int = 0
    halves: int = 0
    in_rate: float = 0.0
    out_rate: float = 0.0
    connections: int = 0
    producers: int = 0
    consumers: int = 0


class Task(NamedTuple):
    """A scheduled task of a broker."""

    broker: str
    name: str
    period_s: float
    runs: int
    failures: int
    last_ms: int
    took_s: float
    last_error: str
    last_error_ms: int


class Topic(NamedTuple):
    """A topic, of all brokers that have it. `types`: those of messages that it takes."""

    name: str
    queues: int
    types: str


class Group(NamedTuple):
    """A consumer group. `retry_max` and `fifo` are None where a lake alone is asked."""

    name: str
    retry_max: int | None
    fifo: bool | None


class TopicStatus(NamedTuple):
    """What brokers' logs, or else the lake, have of a topic."""

    messages: int
    newest_ms: int


@dataclass(frozen=True, slots=True)
class Names:
    """Topics and groups, by name; `dead` are groups that have a dead-letter topic. `at`: the groups that each gateway knows."""

    topics: tuple[Topic, ...] = ()
    groups: tuple[Group, ...] = ()
    dead: tuple[str, ...] = ()
    at: dict[str, frozenset[str]] = field(default_factory=dict)


class Freshness(NamedTuple):
    """How far the lake has got with a broker's log."""

    broker: str
    batch: int
    committed: datetime
    end_offset: int
    behind_bytes: int


class Told(NamedTuple):
    """Rows of an answer; `said` is what it lacks."""

    rows: tuple[Row, ...]
    said: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """A message: rows of `MESSAGES` with cut bodies, of one id. `copies` are those among dead letters; where there is nothing else,
    one of them is the message. `trace`: rows of `TRACE`. `again`: what it was sent again as."""

    messages: tuple[Row, ...]
    copies: tuple[Row, ...] = ()
    trace: tuple[Row, ...] = ()
    again: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """What a look-up answered, of so many `messages`; `said` is what the answer lacks."""

    stories: tuple[Story, ...]
    messages: int
    said: tuple[str, ...]
