"""What a delivery machine knows of its groups, by what the broker answered."""

from __future__ import annotations

from dataclasses import dataclass, field

from broker_gateway.delivery.queue_delivery import QueueKey
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import Call

ORDERED = "in_order"
TOPIC, GROUPS, CLIENTS, QUEUES = "orders", ("often", "rate_limited_log", ORDERED), ("one", "two"), 2
ATTEMPTS = {"often": 17, "rate_limited_log": 2, ORDERED: 3}
MESSAGE_GROUPS = ("x", "y", "z")
"""Of both queues."""
FILTERS = ("*", "a", "b", "a || b")
Place = tuple[int, int]
"""Queue id and queue offset."""


@dataclass
class Held:
    """A delivery that a client was answered with."""

    message: pb.Message
    group: str
    place: Place
    attempt: int
    until_ms: int
    suspended: bool = False
    nacked: bool = False
    poll: Poll | None = None
    """Which took it, until its client changes when it is due."""


@dataclass
class Poll:
    """A receive under way."""

    call: Call
    group: str
    tags: str
    client: str
    attempt_id: str = ""


@dataclass
class Known:
    """What is known of a group."""

    settled: set[Place] = field(default_factory=set)
    """Answered OK: must not come again."""
    maybe: set[Place] = field(default_factory=set)
    """Settled, or not: the answer was an error."""
    held: dict[Place, Held] = field(default_factory=dict)
    attempts: dict[Place, int] = field(default_factory=dict)
    """Deliveries that counted."""


@dataclass(frozen=True)
class Before:
    """A group on a queue before a step."""

    position: int
    cursor: int
    flying: frozenset[int]


@dataclass
class Moment:
    """What was known when the log ended there."""

    log_end: int
    now_ms: int
    known: dict[str, Known]
    queues: dict[QueueKey, Before]
