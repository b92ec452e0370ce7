"""How long a message waits before it is delivered again, when a group's configuration decides.

| type | the wait after a delivery, by the number of deliveries before it |
|---|---|
| CUSTOMIZED | that step of `next` plus two, or the last one: its first two are of delay levels that were never retries |
| EXPONENTIAL | `initial` times a power of `multiplier`, at most `max` |

All in ms. Clients have the policy in their settings, and ask for such waits themselves; the broker decides when it stops
renewing a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_gateway.metadata.kept_fields import ConfigurationError, shown

LONGEST_MS = 12 * 3_600_000
"""A wait; no client may ask for an invisible duration beyond it, unless the broker's options say otherwise."""
MOST_STEPS = 128
MOST_MULTIPLIER = 1000
_MOST_POWER = 32


@dataclass(frozen=True, slots=True)
class CustomizedPolicy:
    """Steps in ms."""

    next_ms: tuple[int, ...]

    def wait_ms(self, attempt: int) -> int:
        """After delivery number `attempt`, of which the first is 1."""
        return self.next_ms[min(max(attempt - 1, 0) + 2, len(self.next_ms) - 1)]


@dataclass(frozen=True, slots=True)
class ExponentialPolicy:
    """Each wait a multiple of the one before."""

    initial_ms: int = 5_000
    max_ms: int = 2 * 3_600_000
    multiplier: int = 2

    def wait_ms(self, attempt: int) -> int:
        """After delivery number `attempt`, of which the first is 1."""
        power: int = self.multiplier ** min(max(attempt - 1, 0), _MOST_POWER)
        return min(self.max_ms, self.initial_ms * power)


RetryPolicy = CustomizedPolicy | ExponentialPolicy
DEFAULT = CustomizedPolicy(
    tuple(
        seconds * 1000
        for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
    )
)


def policy_of(value: object) -> RetryPolicy:
    """The policy that a configuration's `groupRetryPolicy` says is in force. Raises ConfigurationError."""
    if value is None:
        return DEFAULT
    members = _object("groupRetryPolicy", value)
    kind = members.get("type")
    if kind == "EXPONENTIAL":
        return _exponential(members.get("exponentialRetryPolicy"))
    if kind in (None, "CUSTOMIZED"):
        return _customized(members.get("customizedRetryPolicy"))
    raise ConfigurationError(f"type of groupRetryPolicy is {shown(kind)}; use one of CUSTOMIZED, EXPONENTIAL")


def check(value: object) -> None:
    """As `policy_of`, and of the policy that is not in force, too. Raises ConfigurationError."""
    policy_of(value)
    if isinstance(value, dict):
        _customized(value.get("customizedRetryPolicy"))
        _exponential(value.get("exponentialRetryPolicy"))


def _customized(value: object) -> CustomizedPolicy:
    steps = None if value is None else _object("customizedRetryPolicy", value).get("next")
    if steps is None:
        return DEFAULT
    if not isinstance(steps, list) or not 1 <= len(steps) <= MOST_STEPS:
        raise ConfigurationError(
            f"next of customizedRetryPolicy is {shown(steps)}; an array of 1 to {MOST_STEPS} times in ms is allowed"
        )
    where = "of customizedRetryPolicy"
    return CustomizedPolicy(
        tuple(_number(f"next[{index}] {where}", each, 0, LONGEST_MS) for index, each in enumerate(steps))
    )


def _exponential(value: object) -> ExponentialPolicy:
    members = {} if value is None else _object("exponentialRetryPolicy", value)

    def number(name: str, default: int, least: int, most: int) -> int:
        found = members.get(name)
        return default if found is None else _number(f"{name} of exponentialRetryPolicy", found, least, most)

    usual = ExponentialPolicy()
    return ExponentialPolicy(
        number("initial", usual.initial_ms, 0, LONGEST_MS),
        number("max", usual.max_ms, 0, LONGEST_MS),
        number("multiplier", usual.multiplier, 1, MOST_MULTIPLIER),
    )


def _object(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{name} is {shown(value)}, not an object")
    return value


def _number(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ConfigurationError(f"{name} is {shown(value)}; a whole number of {least} to {most} is allowed")
    return value
