"""Options of RocketMQ that have no effect here, or are refused: checked by the table, never passed over in silence."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from math import isfinite

from broker_gateway.config.catalogue import ROWS
from broker_gateway.config.catalogue.row import Fate, Kind, Row
from broker_gateway.config.options import is_integer
from broker_gateway.runtime.errors import OptionError

_NUMBER = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,4})?")
_INTEGERS = {Kind.INT: 31, Kind.LONG: 63}


class OtherOptions:
    """Takes the options of the table that are not `effective` ones; `kept` are those with a value of their own."""

    def __init__(self, effective: Collection[str]) -> None:
        self._rows = {name: row for name, row in ROWS.items() if name not in effective}
        self.kept: dict[str, str] = {}

    def names(self) -> Collection[str]:
        return self._rows

    def take(self, name: str, value: str) -> str | None:
        """What to warn of. Raises OptionError for a value of another type, and for what is refused."""
        row = self._rows[name]
        value = checked(row, value)
        if value == (row.default or ""):
            return None
        verdict = row.verdict
        if verdict.fate is Fate.REFUSED:
            allowed = verdict.allowed or (row.default or "",)
            if value not in allowed:
                shown = " or ".join(each or "nothing" for each in allowed)
                raise OptionError(
                    f"option {name}={row.shown(value)} is refused: {verdict.why} (allowed: {shown})"
                )
        self.kept[name] = value
        return f"option {name}={row.shown(value)} has no effect: {verdict.why}"


def values_of(kept: Mapping[str, str], effective: Collection[str]) -> dict[str, str]:
    """Those options with their values, defaults too; empty where the original has none or works one out."""
    return {name: kept.get(name, row.default or "") for name, row in ROWS.items() if name not in effective}


def checked(row: Row, value: str) -> str:
    """The value as the table writes it. Raises OptionError when it is not of the row's type."""
    value = value.strip()
    if not value and not row.default:
        return value  # what the original works out by itself
    problem = _PROBLEMS[row.kind](row, value)
    if problem:
        raise OptionError(f"option {row.name}={row.shown(value)}: {problem}")
    return value.lower() if row.kind is Kind.BOOL else value


def _boolean(_row: Row, value: str) -> str:
    return "" if value.lower() in ("true", "false") else "it is not a boolean (allowed: true or false)"


def _integer(row: Row, value: str) -> str:
    bits = _INTEGERS[row.kind]
    allowed = f"(allowed: {-1 << bits} to {(1 << bits) - 1})"
    if not is_integer(value):
        return f"it is not an integer {allowed}"
    return "" if -1 << bits <= int(value) < 1 << bits else f"it is out of range {allowed}"


def _number(_row: Row, value: str) -> str:
    if _NUMBER.fullmatch(value) is None or not isfinite(float(value)):
        return "it is not a number (allowed: such as 0.95)"
    return ""


def _text(_row: Row, _value: str) -> str:
    return ""


_PROBLEMS: dict[Kind, Callable[[Row, str], str]] = {
    Kind.BOOL: _boolean,
    Kind.INT: _integer,
    Kind.LONG: _integer,
    Kind.DOUBLE: _number,
    Kind.TEXT: _text,
}
