"""Delta's statistics of a file: rows, and least, greatest and null count of each scalar column.

Readers pass over a file whose least and greatest values rule out what they look for, so both must hold for
every value, in the order that Spark, delta-rs and DuckDB compare in: texts by code points, times by ms.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from store.counting import counted

TEXT = 32
"""Characters of a text in the statistics."""
_LAST, _BEFORE_SURROGATES, _BEHIND_SURROGATES = 0x10FFFF, 0xD7FF, 0xE000


class Statistics:
    """Those of a file under construction. Values are exact here, and rounded when they are stated."""

    def __init__(self) -> None:
        self._rows = 0
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._nulls: dict[str, int] = {}

    def add(self, rows: pa.Table) -> None:
        """Counts further rows of the file in."""
        self._rows += rows.num_rows
        for name in rows.column_names:
            column = rows[name]
            if pa.types.is_nested(column.type) or pa.types.is_binary(column.type):
                continue
            self._nulls[name] = self._nulls.get(name, 0) + column.null_count
            if column.null_count == len(column) or not _has_ends(column.type):
                continue
            if pa.types.is_dictionary(column.type):
                column = _distinct(column)
            ends = pc.min_max(column)
            least, greatest = ends["min"].as_py(), ends["max"].as_py()
            self._least[name] = min(self._least.get(name, least), least)
            self._greatest[name] = max(self._greatest.get(name, greatest), greatest)

    def stated(self) -> dict[str, Any]:
        """As Delta's log has them. A long text is cut, the greatest one rounded up; where there is no text above
        it, it is left out, which rules out nothing."""
        greatest = {name: _rounded_up(value) for name, value in self._greatest.items()}
        return {
            "numRecords": self._rows,
            "minValues": {name: _rounded_down(value) for name, value in self._least.items()},
            "maxValues": {name: value for name, value in greatest.items() if value is not None},
            "nullCount": self._nulls,
        }

    def refuted(self, stated: Mapping[str, Any]) -> Iterator[str]:
        """What is wrong in statistics that some writer stated for the rows that were counted in."""
        if (rows := stated.get("numRecords")) not in (None, self._rows):
            yield f"{counted(rows, 'row')} {'is' if rows == 1 else 'are'} stated, {self._rows:,} {'is' if self._rows == 1 else 'are'} there"
        for name, nulls in (stated.get("nullCount") or {}).items():
            if nulls != self._nulls.get(name, nulls):
                yield f"{nulls:,} nulls of {name} are stated, {self._nulls[name]:,} are there"
        for name, least in (stated.get("minValues") or {}).items():
            if name in self._least and self._least[name] < _read(least, self._least[name]):
                yield f"the least {name} is stated as {least!r}, {self._least[name]!s:.60} is there"
        for name, greatest in (stated.get("maxValues") or {}).items():
            if name in self._greatest and _is_above(self._greatest[name], greatest):
                yield f"the greatest {name} is stated as {greatest!r}, {self._greatest[name]!s:.60} is there"


def _distinct(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a dictionary column, each once."""
    if column.num_chunks == 1 and len(column.chunk(0).dictionary) == 1:
        return pa.chunked_array([column.chunk(0).dictionary])  # it has a value that is not null
    return column.unique().dictionary_decode()


def _read(stated: Any, like: Any) -> Any:
    """A stated value as the values themselves are."""
    return datetime.datetime.fromisoformat(stated) if isinstance(like, datetime.datetime) else stated


def _is_above(value: Any, stated: Any) -> bool:
    """Whether a value is above the stated greatest one: a time may be cut to ms (other writers round the greatest one down)."""
    if isinstance(value, datetime.datetime):  # nothing is added: there may be no later time
        return bool(value - _read(stated, value) >= datetime.timedelta(milliseconds=1))
    return bool(value > stated)


def _has_ends(type: pa.DataType) -> bool:
    """Whether a least and a greatest value are stated. A column that somebody added may be of any type."""
    if pa.types.is_dictionary(type):
        type = type.value_type
    return bool(pa.types.is_integer(type) or pa.types.is_string(type) or pa.types.is_timestamp(type))


def _rounded_down(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT]
    if isinstance(value, datetime.datetime):
        return _in_ms(value)
    return value


def _rounded_up(value: Any) -> Any:
    """The value or one above it; None where there is none."""
    if isinstance(value, str) and len(value) > TEXT:
        return _text_above(value[:TEXT])
    if isinstance(value, datetime.datetime):
        below_ms = value.microsecond % 1000
        return _in_ms(value + datetime.timedelta(microseconds=1000 - below_ms) if below_ms else value)
    return value


def _text_above(beginning: str) -> str | None:
    """The least text of no more characters that is above every text with this beginning; None without one."""
    kept = beginning.rstrip(chr(_LAST))
    if not kept:
        return None
    last = ord(kept[-1])
    return kept[:-1] + chr(_BEHIND_SURROGATES if last == _BEFORE_SURROGATES else last + 1)


def _in_ms(value: datetime.datetime) -> str:
    """Milliseconds are what every reader takes."""
    return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
