"""The JDBC driver of Arrow Flight SQL: what it gets is what the engine answers, whatever the machine's time zone."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.flight.service import Sizes
from tests.support.lakes.served import SLOW, TOKEN, Served, made_lake, serve
from tests.support.rocketmq.foreign_clients import java

PLAIN = "SELECT {} FROM messages ORDER BY physical_offset"
COLUMNS = (
    "message_id, topic, queue_id, queue_offset, physical_offset, tag, message_group, priority, body, body_encoding, size, flag, "
    "is_system, store_timestamp, born_timestamp, deliver_timestamp, store_host"
)
_TIMEOUT_S = 300.0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    lake = made_lake(tmp_path_factory.mktemp("jdbc"))
    with EmbeddedEngine.open(str(lake), Limits(memory_bytes=256 << 20, seconds=0)) as engine:
        yield engine


@pytest.fixture(scope="module")
def served(engine: EmbeddedEngine) -> Iterator[Served]:
    with serve(engine, Sizes(statements=1)) as served:
        yield served


def asked(served: Served, *questions: str, zone: str = "UTC", **properties: str) -> list[list[str]]:
    """The lines that answer each question, by one process and one connection."""
    given = {"user": "anyone", "password": TOKEN, "useEncryption": "false"} | properties
    lines = [*(f"{name}={value}" for name, value in given.items()), "", *questions, ""]
    done = subprocess.run(
        [*java("jdbc", "Ask.java"), f"jdbc:arrow-flight-sql://127.0.0.1:{served.port}"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        env={
            **os.environ,
            "JDK_JAVA_OPTIONS": f"--add-opens=java.base/java.nio=ALL-UNNAMED -Duser.timezone={zone}",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    answers = done.stdout.split("END\n")
    assert answers.pop() == "", done.stdout[-2000:]
    return [answer.splitlines() for answer in answers]


def written(rows: Sequence[Sequence[object]]) -> list[str]:
    return ["\t".join(map(shown, row)) for row in rows]


def shown(value: Any) -> str:
    """As Ask.java writes it."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime):
        return str((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, list):
        value = f"[{', '.join(value)}]"
    return f":{value.encode().hex()}"


def answer(engine: EmbeddedEngine, statement: str, parameters: Sequence[object] = ()) -> list[str]:
    found = engine.query(statement, list(parameters)).read_all()
    columns = [column.to_pylist() for column in found.columns]
    return ["\t".join(found.schema.names), *written(list(zip(*columns, strict=True)))]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_rows_are_those_of_the_engine(served: Served, engine: EmbeddedEngine, zone: str) -> None:
    statements = (
        PLAIN.format(COLUMNS),
        PLAIN.format("message_id, keys"),
        "SELECT topic, count(*) AS n, sum(size) AS bytes FROM messages GROUP BY ALL ORDER BY ALL",
        "SELECT broker, start_offset, end_offset, records, commit_timestamp FROM reput_progress ORDER BY ALL",
        "SELECT 1.5 AS d, 2::DOUBLE / 3 AS f, true AS b, 'ä\U0001f600' AS text WHERE 1 = 1",
        "SELECT count(*) AS n FROM memory.main.messages",
    )
    found = asked(served, *(f"rows {statement}" for statement in statements), zone=zone)
    for lines, statement in zip(found, statements, strict=True):
        assert lines == answer(engine, statement), statement
    assert len(found[0]) == 304


def test_parameters_have_the_types_of_their_columns(served: Served, engine: EmbeddedEngine) -> None:
    """In UTC: in another zone the driver sends what a clock on the wall shows there."""
    by_place = "SELECT message_id FROM messages WHERE topic = ? AND queue_id = ? AND queue_offset >= ? ORDER BY ALL LIMIT ?"
    by_time = "SELECT count(*) AS n FROM messages WHERE born_timestamp <= ? AND topic IN (?, ?)"
    born = 1_700_000_000_000_000
    found = asked(
        served,
        f"prepared {by_place}\ts:topic-1\ti:1\tl:2\tl:5",
        f"prepared {by_time}\tt:{born}\ts:topic-1\ts:topic-2",
        f"prepared {by_time}\tt:{born - 1}\ts:topic-1\ts:topic-2",
        "prepared SELECT ? AS text\ts:it's",
        "prepared SELECT message_id FROM messages WHERE topic = ?\ts:nowhere",
    )
    assert found == [
        answer(engine, by_place, ["topic-1", 1, 2, 5]),
        ["n", "200"],
        ["n", "0"],
        ["text", shown("it's")],
        ["message_id"],
    ]
    assert len(found[0]) == 6


def test_tools_find_tables_columns_and_keys(served: Served, engine: EmbeddedEngine) -> None:
    about, tables, columns, keys = asked(
        served,
        "about",
        "tables %",
        "columns messages",
        "keys message_index",
        token=TOKEN,
        user="",
        password="",
    )
    assert about[0].startswith("lakebroker\t")
    assert about[0].endswith("\ttrue")
    relations = {each.name: each for each in engine.relations()}
    assert tables == sorted(written([(each.name, each.kind.upper()) for each in relations.values()]))
    schema = relations["messages"].schema
    names = [line.split("\t")[0] for line in columns]
    assert names == [shown(name) for name in schema.names]
    assert columns[0] == f"{shown('broker')}\t12\t{shown('VARCHAR')}\t{shown('name of the broker')}"
    assert keys == written(
        [(name, at) for at, name in enumerate(("broker", "log_id", "physical_offset", "key_type", "key"), 1)]
    )


def test_what_is_wrong_is_an_error_and_the_connection_goes_on(served: Served) -> None:
    found = asked(
        served,
        "rows SELECT * FROM nowhere",
        "rows DELETE FROM messages",
        "update DELETE FROM messages",
        f"cancel {SLOW}",
        "rows SELECT 7 AS n",
    )
    assert "nowhere" in found[0][0]
    assert "only reads" in found[1][0]
    assert "only reads" in found[2][0]
    assert "CANCELLED" in found[3][0]
    assert found[4] == ["n", "7"]


def test_a_wrong_password_is_refused(served: Served) -> None:
    with pytest.raises(AssertionError, match="UNAUTHENTICATED"):
        asked(served, "about", password="wrong")
