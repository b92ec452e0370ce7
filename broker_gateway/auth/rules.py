"""What a call does, and to what: the terms in which policies decide. RocketMQ's access lists have the same actions."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar


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
    """One call.

    `name`: which field names the resource, of a message as a path such as `messages.topic` to a text or a Resource, of a
    remoting request one of its header; empty where no field does. `operators`: what only those who run the broker do,
    unless a policy says otherwise. `logged`: it changes something, so it is written to the log. `also`: what else it
    does, all of which has to be allowed.
    """

    action: Action
    kind: Kind
    name: str = ""
    operators: bool = False
    logged: bool = False
    also: tuple[Rule, ...] = ()

    @property
    def all(self) -> tuple[Rule, ...]:
        """This one, and what else the call does."""
        return (self, *self.also)


class NoRuleError(Exception):
    """A call that no table names cannot be served, for nobody could say who may make it."""


Call = TypeVar("Call", bound=Hashable)


def rule_of(rules: Mapping[Call, Rule], call: Call, name: str) -> Rule:
    """The rule of a call. Raises NoRuleError with its name."""
    rule = rules.get(call)
    if rule is None:
        raise NoRuleError(f"{name} has no rule; add one to its table in broker_gateway/auth")
    return rule
