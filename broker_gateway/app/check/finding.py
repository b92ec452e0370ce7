"""What a check found.

| verdict | means |
|---|---|
| `fail` | the broker would not start |
| `warn` | the broker starts; the remedy says what to do about it |
| `ok` | nothing to do |
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from broker_gateway.runtime.errors import StartError


class Verdict(enum.Enum):
    """See the module."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(NamedTuple):
    """`broker` is empty for what concerns the host as a whole; `remedy` is empty where there is nothing to do."""

    check: str
    verdict: Verdict
    value: str
    remedy: str = ""
    broker: str = ""


def ok(check: str, value: str) -> Finding:
    return Finding(check, Verdict.OK, value)


def warn(check: str, value: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WARN, value, remedy)


def fail(check: str, value: str, remedy: str = "") -> Finding:
    return Finding(check, Verdict.FAIL, value, remedy)


def as_at_start(check: str, value: str, look: Callable[[], str | None]) -> Finding:
    """By a rule of the start: it returns a warning or raises StartError, whose text says value and remedy after a semicolon."""
    try:
        warning = look()
    except StartError as error:
        return fail(check, *_parted(str(error)))
    return ok(check, value) if warning is None else warn(check, *_parted(warning))


def _parted(text: str) -> tuple[str, str]:
    what, _, remedy = text.rpartition("; ")
    return (what, remedy) if what else (text, "")
