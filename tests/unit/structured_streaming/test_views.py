"""Every view in DuckDB and in the embedded engine: what a plain reading of the logs says, whatever the machine's time zone."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from structured_streaming.embedded.database import connected
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.tables import TABLES
from structured_streaming.views import VIEWS, View
from tests.support.lakes.view_answers import Row
from tests.support.lakes.viewed import (
    ASK_LAG,
    ASK_OLD_DEAD_LETTERS,
    BATCHES,
    FOUND_OLD_DEAD_LETTERS,
    LAG_OF_BATCHES,
    LAGS,
    ONE_FILE,
    VIEW,
    Ask,
    Rows,
    assert_answers,
    hourly,
    old_dead_letters,
    viewed,
)
from tests.support.machines.zones import local_time

PAGE = Path(__file__).parents[3] / "docs" / "views.md"
Viewed = tuple[Path, dict[str, list[Row]]]


@contextmanager
def duck(folder: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """With tables and views of a lake; it reads the process's time zone once, so it is told."""
    with connected(delta=True) as connection:
        connection.execute(f"SET TimeZone = '{os.environ.get('TZ', 'UTC')}'")
        for name in TABLES:
            connection.execute(f"CREATE VIEW {name} AS SELECT * FROM delta_scan('{folder / name}')")
        _add_views(connection)
        yield connection


@contextmanager
def holding(rows: Rows) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB with these rows in its own tables, and the views."""
    with duckdb.connect() as connection:
        for name, table in TABLES.items():
            given = pa.Table.from_pylist(rows.get(name, []), table.schema)
            connection.register("given", given)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        _add_views(connection)
        yield connection


def _add_views(connection: duckdb.DuckDBPyConnection) -> None:
    for view in VIEWS:
        connection.execute(f"CREATE VIEW {view.name} AS {view.sql}")


@contextmanager
def both(lake: Path) -> Iterator[dict[str, Ask]]:
    with duck(lake) as connection, EmbeddedEngine.open(str(lake)) as embedded:
        yield {
            "DuckDB": lambda statement: connection.execute(statement).to_arrow_table(),
            "embedded": lambda statement: embedded.query(statement).read_all(),
        }


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Viewed:
    return viewed(tmp_path_factory.mktemp("viewed"))


@pytest.fixture(scope="module")
def engines(there: Viewed) -> Iterator[dict[str, Ask]]:
    """Where the machine's time is not UTC."""
    with local_time("America/New_York"), both(there[0]) as asked:
        yield asked


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_both_say_what_the_logs_say(engines: dict[str, Ask], view: View, there: Viewed) -> None:
    _, answered = there
    assert answered[view.name]
    for name, ask in engines.items():
        assert_answers(ask, view, answered[view.name], name)


def test_the_machines_time_zone_changes_nothing(there: Viewed) -> None:
    """Nor does one on the other side of UTC."""
    lake, answered = there
    with local_time("Asia/Tokyo"), both(lake) as engines:
        assert time.tzname[0] == "JST"
        asked = engines["DuckDB"]("SELECT current_setting('TimeZone') AS zone")
        assert asked.to_pylist() == [{"zone": "Asia/Tokyo"}]
        for view in VIEWS:
            assert_answers(engines["DuckDB"], view, answered[view.name], view.name)
        embedded = engines["embedded"]("SELECT current_timestamp::VARCHAR AS now").to_pylist()
        assert embedded[0]["now"].endswith("+00"), "its zone is none of the machine's"


def test_the_page_about_views_is_right(engines: dict[str, Ask]) -> None:
    parts = re.split(r"^## `(\w+)`$", PAGE.read_text(), flags=re.MULTILINE)[1:]
    assert parts[::2] == [view.name for view in VIEWS]
    for view, part in zip(VIEWS, parts[1::2], strict=True):
        assert part.strip().startswith(view.comment)
        listed = re.findall(r"^\| `(\w+)` \| [A-Z<>]+ \| (.+) \|$", part, re.MULTILINE)
        inherited = re.findall(r"^It has the columns of `(\w+)`", part, re.MULTILINE)
        described = [(c.name, c.comment) for name in inherited for c in TABLES[name].columns] + listed
        assert described == [(column.name, column.comment) for column in view.columns]
        assert engines["DuckDB"](f"SELECT * FROM {view.name} LIMIT 0").schema.names == view.schema.names
        (example,) = re.findall(r"```sql\n(.+?)```", part, re.DOTALL)
        assert engines["embedded"](example).num_rows, example


def test_dispatch_lag_is_what_later_batches_brought() -> None:
    with holding({"reput_progress": BATCHES}) as connection:
        assert_answers(
            lambda asked: connection.execute(asked).to_arrow_table(),
            VIEW["dispatch_lag"],
            LAG_OF_BATCHES,
            "DuckDB",
        )


def test_dead_letters_of_a_lake_from_before_there_were_origins() -> None:
    with holding(old_dead_letters()) as connection:
        assert connection.execute(ASK_OLD_DEAD_LETTERS).fetchall() == FOUND_OLD_DEAD_LETTERS


@pytest.mark.parametrize("case", LAGS)
def test_lag(case: str) -> None:
    rows, expected = LAGS[case]
    with holding(rows) as connection:
        assert connection.execute(ASK_LAG).fetchall() == expected


def test_what_is_asked_for_reaches_the_statistics_of_files(tmp_path: Path) -> None:
    with local_time("UTC"), duck(hourly(tmp_path)) as connection:  # its literals are of the zone
        assert _scans(connection, "SELECT * FROM messages_live")[0][:2] == ("messages", 12)
        for question, tables in ONE_FILE.items():
            statement = f"SELECT * FROM {question}"
            rows = connection.execute(f"SELECT 1 FROM {question} LIMIT 1").fetchall()
            assert rows or "transactions" in question or "delayed" in question
            scans = _scans(connection, statement)
            assert scans
            for name, opened, condition in scans:
                if "_timestamp >" in question:
                    # every file is opened, and groups of rows in it are passed over
                    assert "_timestamp>" in condition, (question, name)
                elif name in tables:
                    assert opened <= 1, (question, scans)


def _scans(connection: duckdb.DuckDBPyConnection, statement: str) -> list[tuple[str, int, str]]:
    """Table, files opened and condition of each scan that opened any."""
    rows = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}").fetchall()
    waiting: list[Any] = [json.loads(rows[0][1])]
    found = []
    while waiting:
        node = waiting.pop()
        waiting += node["children"]
        info = node.get("extra_info", {})
        if names := info.get("Filename(s)"):
            table = Path(names.split(",")[0]).parent.name
            found.append((table, int(info["Total Files Read"]), str(info.get("Filters", ""))))
    return found
