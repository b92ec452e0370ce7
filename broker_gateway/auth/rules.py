"""What a call does, and to what: the terms in which policies decide. RocketMQ's access lists have the same actions."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Action(enum.Enum):
    """What is done."""

    PUB = enum.auto()
    SUB = enum.auto()
    CREATE = enum.auto()
    UPDATE = enum.auto()
    DELETE = enum.auto()
    GET = enum.auto()
    LIST = enum.auto()


class Kind(enum.Enum):
    """Of what it is done to."""

    TOPIC = enum.auto()
    GROUP = enum.auto()
    CLUSTER = enum.auto()
    """The broker, its name server, and what they know of others."""
    LOG = enum.auto()
    """The commit log as a whole, which holds every topic."""


class Rule(NamedTuple):
    """One call. `owners`: what only those who run the broker do, unless a policy says otherwise. `logged`: it changes
    something, and is told in the log."""

    action: Action
    kind: Kind
    owners: bool = False
    logged: bool = False
