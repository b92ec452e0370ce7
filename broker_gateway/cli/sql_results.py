"""How results of SQL are printed: `csv` and `json` lose nothing, `table` is for reading.

| type | json | csv | table |
|---|---|---|---|
| NULL | `null` | an empty field; an empty text is `""` | `NULL` |
| timestamp | `"2026-11-22T04:06:14.123456Z"`, UTC | the same | `2026-11-22 04:06:14.123456`, to the ms where there is no more |
| timestamp without time zone | the same without `Z` | the same | as above |
| binary | base64 | base64 | text, with `\\xff` for what is no UTF-8 |
| map, array, struct | object or array | its JSON | its JSON |
| decimal, interval | text; of DuckDB's intervals as ISO 8601 has durations | the same | the same |
| NaN, infinities | `"NaN"`, `"Infinity"`, `"-Infinity"` | `NaN`, … | `NaN`, … |

A map whose keys are no text has them as text. In csv a text that a spreadsheet would run as a formula (it begins
with `=`, `+`, `-`, `@`, a tab or a line break) or that begins with `'` has a `'` put before it: take one leading `'`
away, or ask for none with `--no-escape`. Control characters are escaped where a person reads (table, csv on a terminal).
"""

from __future__ import annotations

import base64
import decimal
import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from broker_gateway.cli.output import lines, show_table, time_for_people
from broker_gateway.runtime.printable import printable

if TYPE_CHECKING:
    import pyarrow as pa

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠", "'")
_ROWS_OF_A_TABLE = 10_000
"""As many are kept until they are printed."""
_QUOTED = frozenset('",\r\n')


def print_rows(rows: pa.RecordBatchReader, form: str, out: TextIO, *, escape: bool = True) -> None:
    """Prints a result as `table`, `csv` or `json`, batch by batch. Raises LakeError when JSON cannot hold its columns, and
    what `rows` raises; OSError."""
    if form == "json":
        _print_json(rows, out)
    elif form == "csv":
        _print_csv(rows, out, escape)
    else:
        _print_tables(rows, out)


def _print_json(rows: pa.RecordBatchReader, out: TextIO) -> None:
    names = rows.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        from structured_streaming.errors import LakeError

        raise LakeError(
            f"column {twice[0]} stands twice in the result, which JSON cannot hold; give one another name (AS …)"
        )
    before = "["
    for batch in rows:
        columns = [_plain(column, _base64) for column in batch.columns]
        for values in zip(*columns, strict=True):
            out.write(before + _json(dict(zip(names, values, strict=True))))
            before = ", "
    out.write("[]\n" if before == "[" else "]\n")


def _print_csv(rows: pa.RecordBatchReader, out: TextIO, escape: bool) -> None:
    import pyarrow as pa

    shown: Callable[[str], str] = lines if out.isatty() else str
    heads = [_cell(name, text=True, escape=escape) for name in rows.schema.names]
    texts = [pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in rows.schema.types]
    begun = False
    for batch in itertools.chain(rows, [None]):
        if not begun:  # what fails before the first rows leaves nothing behind
            out.write(shown(",".join(heads)) + "\r\n")
            begun = True
        if batch is None:
            return
        columns = [
            [_cell(value, text=text, escape=escape) for value in _plain(column, _base64)]
            for column, text in zip(batch.columns, texts, strict=True)
        ]
        out.writelines(shown(",".join(cells)) + "\r\n" for cells in zip(*columns, strict=True))


def _print_tables(rows: pa.RecordBatchReader, out: TextIO) -> None:
    """One table; of many rows several, for each is as wide as its rows need."""
    names = rows.schema.names
    cells: list[tuple[str, ...]] = []
    shown = False
    for batch in rows:
        columns = [_cells(column) for column in batch.columns]
        cells += zip(*columns, strict=True)
        while len(cells) >= _ROWS_OF_A_TABLE:
            show_table(names, cells[:_ROWS_OF_A_TABLE], out)
            del cells[:_ROWS_OF_A_TABLE]
            shown = True
    if cells or not shown:
        show_table(names, cells, out)


def _cell(value: Any, *, text: bool, escape: bool) -> str:
    """A value as a field of csv."""
    if value is None:
        return ""
    cell = value if isinstance(value, str) else _json(value)
    if text and escape and cell.startswith(_FORMULA):
        cell = f"'{cell}"
    if not cell or not _QUOTED.isdisjoint(cell):
        quoted = cell.replace('"', '""')
        return f'"{quoted}"'
    return cell


def _cells(column: pa.Array) -> list[str]:
    """A column as a person reads it."""
    import pyarrow as pa

    values = _plain(column, _text)
    if pa.types.is_timestamp(column.type):
        values = [None if each is None else time_for_people(each) for each in values]
    return [_read(each) for each in values]


def _read(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "NULL"
    return printable(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def _plain(column: pa.Array, binary: Callable[[bytes], str]) -> list[Any]:
    """The column's values as JSON has them; a whole column at a time where that is possible."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        return list(_instants(column))
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return list(column.to_pylist())
    return [_value(each, binary) for each in column]


def _instants(column: pa.Array) -> Iterator[str | None]:
    """ISO 8601 with microseconds, in any year; `Z` where the type has a time zone."""
    import numpy as np
    import pyarrow as pa

    zone = "Z" if column.type.tz else ""
    ticks = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    for text, valid in zip(
        np.datetime_as_string(ticks.fill_null(0).to_numpy().astype("datetime64[us]")),
        column.is_valid().to_pylist(),
        strict=True,
    ):
        yield f"{text}{zone}" if valid else None


def _value(value: pa.Scalar, binary: Callable[[bytes], str]) -> Any:
    import pyarrow as pa

    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(value.as_buffer().to_pybytes())  # Spark's texts need not be UTF-8
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return binary(value.as_py())
    if pa.types.is_timestamp(kind):
        return next(_instants(pa.array([value.value], pa.int64()).cast(kind)))
    if pa.types.is_struct(kind):
        return {name: _value(value[at], binary) for at, name in enumerate(field.name for field in kind)}
    if pa.types.is_map(kind):
        return _map([(_value(pair[0], binary), _value(pair[1], binary)) for pair in value.values])
    if pa.types.is_nested(kind):
        return [_value(each, binary) for each in value.values]
    if pa.types.is_floating(kind):
        return _number(value.as_py())
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return value.as_py()
    if pa.types.is_interval(kind):
        months, days, nanoseconds = value.as_py()
        return f"P{months}M{days}DT{decimal.Decimal(nanoseconds).scaleb(-9).normalize():f}S"
    return str(value.as_py())  # decimal, date, time, interval


def _map(pairs: list[tuple[Any, Any]]) -> Any:
    """An object; the pairs, where keys would fall together."""
    found = {key if isinstance(key, str) else _json(key): value for key, value in pairs}
    return found if len(found) == len(pairs) else [list(pair) for pair in pairs]


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
