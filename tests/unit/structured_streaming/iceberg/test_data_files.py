"""Entries of manifests never rule out a row that is there: what is not sure to hold is left out."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema as DeltaSchema
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import EqualTo, IsNull, NotNull
from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator
from pyiceberg.manifest import DataFile as Entry
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, StringType, TimestamptzType

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.errors import LakeError
from structured_streaming.iceberg.data_files import Entries
from structured_streaming.iceberg.schemas import iceberg_schema
from structured_streaming.staging.statistics import Statistics
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import TIMESTAMP

COLUMNS = pa.schema(
    [
        ("number", pa.int32()),
        ("offset", pa.int64()),
        ("text", pa.string()),
        ("time", TIMESTAMP),
        ("share", pa.float64()),
        ("yes", pa.bool_()),
        ("bytes", pa.binary()),
        ("list", pa.list_(pa.string())),
    ]
)
SCHEMA = iceberg_schema(DeltaSchema.from_arrow(COLUMNS).to_json(), None, 0, 0)
NAMES = {field.name: field.field_id for field in SCHEMA.fields}
NOWHERE = LocalFolder(Path("/nowhere"))


def entry(stats: dict[str, Any] | None, folder: LocalFolder = NOWHERE, schema: Schema = SCHEMA) -> Entry:
    file = DataFile("part%20one.parquet", 100, json.dumps(stats) if stats is not None else "", False)
    return Entries(folder, "file:///nowhere", schema).entry(file)


def bounds(found: Entry, name: str) -> list[Any]:
    kind, number = SCHEMA.find_type(name), NAMES[name]
    ends = found.lower_bounds.get(number), found.upper_bounds.get(number)
    return [None if end is None else from_bytes(kind, end) for end in ends]  # type: ignore[arg-type]


def micros(text: str) -> int:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (datetime.datetime.fromisoformat(text) - epoch) // datetime.timedelta(microseconds=1)


ANY_TIME = st.datetimes(
    datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=st.just(datetime.UTC)
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "number": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
            "offset": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            "text": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=70),
            "time": st.none() | ANY_TIME,
            "share": st.none() | st.floats(),
            "yes": st.none() | st.booleans(),
        }
    ),
    min_size=1,
    max_size=5,
)


@given(ROWS)
def test_what_the_reput_states_rules_out_no_row(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, COLUMNS)
    statistics = Statistics()
    statistics.add(table)
    found = entry(statistics.stated())
    assert found.record_count == len(rows)
    for row in rows:
        for name in ("number", "offset", "text", "time"):
            value = row[name]
            if isinstance(value, datetime.datetime):
                value = value.isoformat()
            where = IsNull(name) if value is None else EqualTo(name, value)
            assert _InclusiveMetricsEvaluator(SCHEMA, where).eval(found), f"{name} = {value!r} is ruled out"
    full = [name for name in ("number", "text") if all(row[name] is None for row in rows)]
    for name in full:
        assert not _InclusiveMetricsEvaluator(SCHEMA, NotNull(name)).eval(found)


def test_each_kind_of_bound_has_its_form() -> None:
    stats = {
        "numRecords": 7,
        "minValues": {"number": -3, "offset": 1 << 40, "text": "añ", "time": "2026-01-02T03:04:05.006Z"},
        "maxValues": {"number": 3, "offset": 1 << 41, "text": "b", "time": "2026-01-02T12:04:05.006+09:00"},
        "nullCount": {"number": 2, "list": 3, "text": 0},
    }
    found = entry(stats)
    assert found.file_path == "file:///nowhere/part one.parquet"
    assert (found.record_count, found.file_size_in_bytes) == (7, 100)
    assert bounds(found, "number") == [-3, 3]
    assert bounds(found, "offset") == [1 << 40, 1 << 41]
    assert bounds(found, "text") == ["añ", "b"]
    time = micros("2026-01-02T03:04:05.006+00:00")
    assert bounds(found, "time") == [time, time + 999]
    assert found.null_value_counts == {NAMES["number"]: 2, NAMES["text"]: 0}
    assert found.value_counts == {NAMES["number"]: 7, NAMES["text"]: 7}
    assert found.lower_bounds[NAMES["number"]] == b"\xfd\xff\xff\xff"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("number", 1 << 31),
        ("number", "3"),
        ("number", True),
        ("number", 1.0),
        ("offset", 1 << 63),
        ("offset", None),
        ("text", 3),
        ("text", "\ud800"),
        ("time", "2026-01-02T03:04:05.006"),
        ("time", "2026-01-02"),
        ("time", "+12026-01-02T03:04:05.006Z"),
        ("time", 1_700_000_000_000),
        ("share", 1.5),
        ("yes", True),
        ("bytes", "x"),
        ("list", {"element": 3}),
        ("elsewhere", 3),
    ],
)
def test_what_is_not_sure_to_hold_is_left_out(name: str, value: object) -> None:
    found = entry({"numRecords": 1, "minValues": {name: value}, "maxValues": {name: value}})
    assert (found.lower_bounds, found.upper_bounds, found.null_value_counts) == ({}, {}, {})


@pytest.mark.parametrize("stats", [{"numRecords": 3, "minValues": 7, "maxValues": None, "nullCount": []}, {}])
def test_statistics_that_are_none_state_nothing(tmp_path: Path, stats: dict[str, Any]) -> None:
    pq.write_table(pa.table({"number": [1, 2, 3]}), tmp_path / "part one.parquet")
    found = entry(stats, LocalFolder(tmp_path))
    assert (found.record_count, found.lower_bounds, found.upper_bounds) == (3, {}, {})


def test_where_no_rows_are_stated_the_file_is_asked(tmp_path: Path) -> None:
    with pytest.raises(LakeError, match=r"part%20one.parquet: the table's log states no rows"):
        entry({"numRecords": -1}, LocalFolder(tmp_path))
    (tmp_path / "part one.parquet").write_bytes(b"torn")
    with pytest.raises(LakeError, match="its own footer cannot be read"):
        entry(None, LocalFolder(tmp_path))


def test_nulls_are_counted_only_where_they_can_be() -> None:
    found = entry({"numRecords": 2, "nullCount": {"number": 3, "offset": -1, "text": 2, "time": "1"}})
    assert found.null_value_counts == {NAMES["text"]: 2}


def test_the_types_are_those_that_the_bounds_are_made_for() -> None:
    kinds = {name: type(SCHEMA.find_type(name)) for name in ("number", "offset", "text", "time")}
    assert list(kinds.values()) == [IntegerType, LongType, StringType, TimestamptzType]
