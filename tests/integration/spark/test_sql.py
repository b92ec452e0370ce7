"""`lakebroker sql` over real Spark and Delta: it only reads, in UTC, and loses nothing; the lag is right or NULL."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from structured_streaming.errors import ReadOnlyError
from structured_streaming.lake import create_tables
from structured_streaming.sql import query, register
from structured_streaming.tables import TABLES
from tests.suite.evidence import LONG

AT_US = 1_700_000_000_123_456
AT = "2023-11-14T22:13:20.123456Z"
STARTING = "lakebroker: starting Spark ...\n"
HOSTILE = "[/x]\x1b[2J"
IN_A_LINE, IN_LINES = "SELECT 1 AS a; /* open; SELECT 2", "SELECT 1 AS a; /* open;\nSELECT 2;\n"
"""Comments that are not closed."""


def add(lake: Path, table: str, *rows: dict[str, Any]) -> None:
    """Rows with NULL in the columns that are not given; of progress as a batch commits them."""
    transactions = [
        Transaction(f"{row['broker']}/{row['log_id']}", row["end_offset"])
        for row in rows
        if "end_offset" in row
    ]
    write_deltalake(
        str(lake / table),
        pa.Table.from_pylist(list(rows), TABLES[table].schema),
        mode="append",
        commit_properties=CommitProperties(app_transactions=transactions),
    )


def invoke(lake: Path, statement: str, *options: str, engine: str = "spark") -> Any:
    arguments = ["sql", "--engine", engine, "--lake", str(lake), *options, statement]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)


@pytest.fixture
def far_away() -> Iterator[None]:
    """A process whose local time is not UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Kathmandu"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    lake = tmp_path / "lake"
    create_tables(str(lake))
    add(
        lake,
        "messages",
        {
            "broker": "b",
            "log_id": "l",
            "physical_offset": 0,
            "topic": "t",
            "message_id": HOSTILE,
            "tag": "=1+1",
            "keys": ["a", ""],
            "message_group": "",
            "properties": [("k", "v")],
            "body": b"\x00\xff",
            "store_timestamp": AT_US,
            "is_system": False,
            "origin": {"topic": "o", "queue_id": 1, "queue_offset": 2, "consumer_group": "g", "attempt": 3},
        },
    )
    add(lake, "reput_progress", {"broker": "b", "log_id": "l", "batch": 1, "end_offset": 1})
    # delta-rs, which wrote the rows, panics at such a name
    return lake.rename(tmp_path / "a 'lake' ü*[x]{y,z}#")


WRITES = {
    "DELETE FROM messages": "DELETE FROM TABLE",
    "DELETE FROM delta.`{lake}/messages`": "DELETE FROM TABLE",
    "UPDATE messages SET topic = 'x'": "UPDATE TABLE",
    "MERGE INTO messages m USING messages n ON m.topic = n.topic WHEN MATCHED THEN DELETE": "MERGE INTO TABLE",
    "INSERT INTO messages SELECT * FROM messages": "INSERT INTO",
    "WITH a AS (SELECT * FROM messages) INSERT INTO messages SELECT * FROM a": "INSERT INTO",
    "FROM messages INSERT INTO messages SELECT * INSERT INTO messages SELECT *": "INSERT INTO",
    "INSERT OVERWRITE DIRECTORY '{lake}/out' USING parquet SELECT 1": "INSERT INTO DIR",
    "CREATE TABLE t USING delta LOCATION '{lake}/t' AS SELECT 1": "CREATE TABLE AS SELECT",
    "CREATE VIEW v AS SELECT 1": "CREATE VIEW",
    "CREATE GLOBAL TEMP VIEW v AS SELECT 1": "CREATE VIEW",
    "DROP VIEW messages": "DROP VIEW",
    "TRUNCATE TABLE messages": "TRUNCATE TABLE",
    "VACUUM delta.`{lake}/messages` RETAIN 0 HOURS": "VACUUM TABLE",
    "OPTIMIZE delta.`{lake}/messages`": "OPTIMIZE TABLE",
    "RESTORE TABLE delta.`{lake}/messages` TO VERSION AS OF 0": "RESTORE TABLE",
    "ALTER TABLE delta.`{lake}/messages` SET TBLPROPERTIES ('a' = 'b')": "SET TABLE PROPERTIES",
    "EXPLAIN DELETE FROM messages": "DELETE FROM TABLE",
    "SET spark.sql.session.timeZone = Asia/Tokyo": "SET",
    "ADD JAR '/tmp/x.jar'": "ADD JARS",
    "BEGIN DELETE FROM messages; END": "COMPOUND BODY",
    "EXECUTE IMMEDIATE 'DELETE FROM messages'": "EXECUTE IMMEDIATE",
    "SELECT TRANSFORM(a) USING 'touch {lake}/out' AS (b) FROM (SELECT 1 a)": "SCRIPT TRANSFORMATION",
    "SELECT (SELECT max(b) FROM (SELECT TRANSFORM(a) USING 'cat' AS (b) FROM (SELECT 1 a)))": "SCRIPT TRANSFORMATION",
    "SELECT reflect('java.lang.System', 'setProperty', 'a', 'b')": "reflect()",
    "CREATE TEMP VIEW v AS SELECT java_method('java.lang.System', 'setProperty', 'a', 'b')": "java_method()",
}
READS = (
    "SELECT count(*) FROM messages;",
    "SELECT * FROM delta.`{lake}/messages`",
    "WITH a AS (SELECT * FROM messages) SELECT count(*) FROM a",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "FROM messages |> WHERE NOT is_system |> AGGREGATE count(*)",
    "SELECT m.topic, k, count(*) OVER w FROM messages m LATERAL VIEW explode(keys) t AS k WINDOW w AS (PARTITION BY m.topic)",
    "SELECT DISTINCT topic FROM messages WHERE topic IN (SELECT topic FROM messages) AND EXISTS (SELECT 1) ORDER BY 1 LIMIT 3",
    "SELECT topic, count(*) FROM messages GROUP BY ALL HAVING count(*) > 0 UNION SELECT 'x', 1 EXCEPT VALUES ('x', 1)",
    "SELECT * FROM delta.`{lake}/messages` VERSION AS OF 1 TABLESAMPLE (100 PERCENT) m JOIN messages n USING (topic)",
    "SELECT * FROM range(3) t, LATERAL (SELECT t.id + 1)",
    "SELECT * FROM (SELECT topic, tag FROM messages) PIVOT (count(*) FOR topic IN ('t'))",
    "SHOW TABLES",
    "SHOW VIEWS",
    "DESCRIBE messages",
    "DESCRIBE HISTORY delta.`{lake}/messages`",
    "DESCRIBE DETAIL delta.`{lake}/messages`",
    "EXPLAIN SELECT * FROM messages",
    "CREATE OR REPLACE TEMP VIEW mine AS SELECT * FROM messages",
    "TABLE messages",
)


def test_it_only_reads(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    create_tables(str(lake))
    add(lake, "messages", {"topic": "t", "is_system": False})
    before = sorted(lake.rglob("*"))
    register(spark, str(lake))
    refused = {}
    for statement in WRITES:
        with pytest.raises(ReadOnlyError) as error:
            query(spark, statement.format(lake=lake))
        refused[statement] = str(error.value)
        assert sorted(lake.rglob("*")) == before, statement
    assert [(s, refused[s]) for s, kind in WRITES.items() if not refused[s].startswith(kind)] == []
    done = invoke(lake, next(iter(WRITES)))
    assert (done.exit_code, done.stdout) == (1, ""), f"{done.stdout}{done.exception!r}"
    assert "--write" in done.stderr
    done = invoke(lake, ";".join(each.format(lake=lake) for each in (*READS, "SHOW VIEWS")))
    assert (done.exit_code, done.stderr) == (0, STARTING), done.stderr
    assert "mine" in done.stdout, "a view for the session"
    assert sorted(lake.rglob("*")) == before
    done = invoke(lake, "SELECT 1; DELETE FROM messages")
    assert done.exit_code == 1
    assert "--write" in done.stderr
    assert sorted(lake.rglob("*")) == before
    done = invoke(lake, "SELECT 1; DELETE FROM messages", "--write")
    assert (done.exit_code, done.stderr) == (0, STARTING)
    assert DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows == 0


INTERVALS = {
    "spark": (
        "INTERVAL 1 YEAR AS years, INTERVAL 1 SECOND AS seconds",
        "INTERVAL '1' YEAR",
        "INTERVAL '01' SECOND",
    ),
    "duckdb": ("INTERVAL 1 YEAR AS years, INTERVAL 1 SECOND AS seconds", "P12M0DT0S", "P0M0DT1S"),
}
EARLY = {"spark": "timestamp_micros(-1)", "duckdb": "make_timestamptz(-1)"}


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_results_are_in_utc_and_lose_nothing(
    spark: SparkSession, lake: Path, far_away: None, engine: str
) -> None:
    intervals, years, seconds = INTERVALS[engine]
    starting = STARTING if engine == "spark" else ""
    statement = f"""SELECT store_timestamp, message_id, tag, message_group, keys, properties, body, origin, flag,
                   {intervals}, DATE '2024-02-29' AS day, {EARLY[engine]} AS early,
                   CAST(1.1 AS DECIMAL(3, 2)) AS "decimal" FROM messages"""
    statement = statement.replace('"', "`") if engine == "spark" else statement
    done = invoke(lake, statement, "--format", "json", engine=engine)
    assert (done.exit_code, done.stderr) == (0, starting), done.exception
    origin = {"topic": "o", "queue_id": 1, "queue_offset": 2, "consumer_group": "g", "attempt": 3}
    expected = {
        "store_timestamp": AT,
        "message_id": HOSTILE,
        "tag": "=1+1",
        "message_group": "",
        "keys": ["a", ""],
        "properties": {"k": "v"},
        "body": base64.b64encode(b"\x00\xff").decode(),
        "origin": origin,
        "flag": None,
        "years": years,
        "seconds": seconds,
        "day": "2024-02-29",
        "early": "1969-12-31T23:59:59.999999Z",
        "decimal": "1.10",
    }
    assert json.loads(done.stdout) == [expected]

    done = invoke(lake, statement, "--format", "csv", engine=engine)
    (row,) = csv.DictReader(io.StringIO(done.stdout))
    assert row["store_timestamp"] == AT
    assert (row["tag"], row["message_id"], row["flag"]) == ("'=1+1", HOSTILE, "")
    assert json.loads(row["properties"]) == {"k": "v"}
    assert json.loads(row["origin"]) == origin
    assert base64.b64decode(row["body"]) == b"\x00\xff"
    done = invoke(lake, "SELECT tag FROM messages", "--format", "csv", "--no-escape", engine=engine)
    assert done.stdout_bytes == b"tag\r\n=1+1\r\n"

    quote = "`" if engine == "spark" else '"'
    head = f"{quote}[/head]{quote}"
    done = invoke(
        lake, f"SELECT message_id AS {head}, store_timestamp, 1 AS a, 2 AS a FROM messages", engine=engine
    )
    assert done.exit_code == 0, done.exception
    assert "[/head]" in done.stdout
    assert "[/x]\\x1b[2J" in done.stdout
    assert AT.replace("T", " ").removesuffix("Z") in done.stdout
    assert "\x1b" not in done.output


def test_bad_sql_is_one_error_without_a_trace(spark: SparkSession, lake: Path) -> None:
    for statement, why in (("SELEC 1", "PARSE_SYNTAX_ERROR"), ("SELECT nothing FROM messages", "`nothing`")):
        done = invoke(lake, statement)
        assert done.exit_code == 1
        assert isinstance(done.exception, SystemExit)
        assert why in done.stderr
        assert "stack" not in done.stderr.lower()
        assert "Relation" not in done.stderr, "Spark's plan, with every column"
        assert "pos" in done.stderr, "where in the statement"


def row(log: str, offset: int, **columns: Any) -> dict[str, Any]:
    return {"broker": "b", "log_id": log, "physical_offset": offset, "topic": "t", "queue_id": 0, **columns}


def commit(log: str, offset: int, committed: int, group: str = "g", **columns: Any) -> dict[str, Any]:
    columns = {"ordinal": 0, "commit_timestamp": AT_US, **columns}
    return row(log, offset, consumer_group=group, committed_offset=committed, **columns)


def progress(log: str, batch: int, broker: str = "b") -> dict[str, Any]:
    return {"broker": broker, "log_id": log, "batch": batch, "end_offset": batch * 1000}


LAG = "consumer_group string, topic string, broker string, queue_id int, committed_offset long, max_offset long, lag long, commit_timestamp timestamp"


def assert_lag(spark: SparkSession, lake: Path, *expected: tuple[Any, ...]) -> None:
    register(spark, str(lake))
    wanted = spark.createDataFrame([(*each, None) for each in expected], LAG).drop("commit_timestamp")
    assert_df_equality(
        spark.table("consumer_lag").drop("commit_timestamp"),
        wanted,
        ignore_row_order=True,
        ignore_nullable=True,
        ignore_metadata=True,
    )


def test_lag_is_one_row_over_several_logs(spark: SparkSession, tmp_path: Path) -> None:
    create_tables(str(tmp_path))
    # the names of logs say nothing about their order: z is the first, a the second
    add(tmp_path, "consume_queue", *(row("z", 100 * n, queue_offset=n) for n in range(100)))
    add(
        tmp_path,
        "consumer_offsets",
        commit("z", 9000, 40),
        commit("z", 9100, 60),
        commit("z", 8000, 7, group="old"),
    )
    add(tmp_path, "reput_progress", progress("z", 1), progress("z", 2))
    assert_lag(spark, tmp_path, ("g", "t", "b", 0, 60, 100, 40), ("old", "t", "b", 0, 7, 100, 93))

    add(tmp_path, "consume_queue", *(row("a", 100 * n, queue_offset=100 + n) for n in range(10)))
    add(tmp_path, "consumer_offsets", commit("a", 500, 103), commit("a", 500, 104, ordinal=1))
    # rows of a table are there before the progress that names them
    assert_lag(spark, tmp_path, ("g", "t", "b", 0, 104, 110, 6), ("old", "t", "b", 0, 7, 110, 103))
    add(tmp_path, "reput_progress", progress("a", 3))
    assert_lag(spark, tmp_path, ("g", "t", "b", 0, 104, 110, 6), ("old", "t", "b", 0, 7, 110, 103))


def test_lag_is_null_where_it_is_not_known(spark: SparkSession, tmp_path: Path) -> None:
    create_tables(str(tmp_path))
    add(tmp_path, "consume_queue", row("l", 0, queue_offset=9), row("l", 1, queue_offset=3, queue_id=2))
    add(
        tmp_path,
        "consumer_offsets",
        commit("l", 10, 10),
        commit("l", 11, 5, queue_id=1),  # no row of this queue: its end is not known
        commit("l", 12, 50, queue_id=2),  # the end that is known is an older one
        commit("l", 13, 7, broker="other"),
    )
    add(tmp_path, "delivery_events", row("l", 20, ordinal=0, consumer_group="never", event="delivered"))
    add(tmp_path, "reput_progress", progress("l", 1))
    assert_lag(
        spark,
        tmp_path,
        ("g", "t", "b", 0, 10, 10, 0),
        ("g", "t", "b", 1, 5, None, None),
        ("g", "t", "b", 2, 50, 4, None),
        ("g", "t", "other", 0, 7, None, None),
        ("never", "t", "b", 0, None, 10, None),
        ("never", "t", "b", 2, None, 4, None),
    )


def test_lag_has_a_row_for_each_queue_of_a_topic_that_a_group_reads(
    spark: SparkSession, tmp_path: Path
) -> None:
    create_tables(str(tmp_path))
    for queue in range(3):
        add(tmp_path, "consume_queue", row("l", queue, queue_offset=99, queue_id=queue))
    add(
        tmp_path,
        "consume_queue",
        row("l2", 0, queue_offset=4, broker="other"),
        row("l", 9, queue_offset=7, topic="elsewhere"),
    )
    add(tmp_path, "consumer_offsets", commit("l", 10, 60), commit("l", 11, 100, group="h", queue_id=1))
    add(tmp_path, "reput_progress", progress("l", 1), progress("l2", 2, "other"))
    assert_lag(
        spark,
        tmp_path,
        ("g", "t", "b", 0, 60, 100, 40),
        ("g", "t", "b", 1, None, 100, None),
        ("g", "t", "b", 2, None, 100, None),
        ("g", "t", "other", 0, None, 5, None),
        ("h", "t", "b", 0, None, 100, None),
        ("h", "t", "b", 1, 100, 100, 0),
        ("h", "t", "b", 2, None, 100, None),
        ("h", "t", "other", 0, None, 5, None),
    )
    plan = spark.sql("EXPLAIN FORMATTED SELECT * FROM consumer_lag").first()[0]
    assert "body" not in plan


@pytest.mark.parametrize(
    ("given", "engine"),
    [
        ("argument", "duckdb"),
        ("input", "duckdb"),
        pytest.param("argument", "spark", marks=LONG),
        ("input", "spark"),
    ],
)
def test_statements_end_with_the_first_that_fails(lake: Path, given: str, engine: str) -> None:
    line = "/* two */ SELECT 1 AS a; SELECT 2 AS a; SELECT 3 FROM nowhere; SELECT 4 AS a"
    arguments = ["sql", "--engine", engine, "--lake", str(lake), "--format", "csv"]
    if given == "argument":
        done = CliRunner().invoke(app, [*arguments, line])
    else:
        done = CliRunner().invoke(app, arguments, input=f"{line};\nSELECT 5 AS a\n")
    assert done.exit_code == 1
    assert done.stdout == "a\n1\na\n2\n"
    assert "nowhere" in done.stderr


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_lines_of_a_script(lake: Path, engine: str) -> None:
    done = CliRunner().invoke(
        app,
        ["sql", "--engine", engine, "--lake", str(lake), "--format", "csv"],
        input="SELECT 1\nAS a;\n\n-- none; at all\nSELECT 2 AS a;/*\nSELECT 3;\n*/ SELECT 4\nAS a",
    )
    assert (done.exit_code, done.stdout) == (0, "a\n1\na\n2\na\n4\n")


def test_a_statement_of_several_lines_is_not_run_in_part(tmp_path: Path) -> None:
    lake = create_tables(str(tmp_path / "lake")).path
    add(lake, "messages", {"topic": "t", "is_system": False})
    done = CliRunner().invoke(
        app,
        ["sql", "--lake", str(lake), "--write", "--format", "csv"],
        input="DELETE FROM messages\nWHERE topic = 'no such topic';\n/*\nDELETE FROM messages;\n*/\n",
    )
    assert (done.exit_code, done.stdout) == (0, "num_affected_rows\n0\n"), done.stderr
    assert invoke(lake, "SELECT count(*) AS n FROM messages", "--format", "csv").stdout == "n\n1\n"


@pytest.mark.parametrize(
    ("given", "engine", "open_comment"),
    [
        ("argument", "duckdb", IN_A_LINE),
        ("argument", "duckdb", IN_LINES),
        ("input", "duckdb", IN_A_LINE),
        ("input", "duckdb", IN_LINES),
        ("argument", "spark", IN_A_LINE),
        pytest.param("argument", "spark", IN_LINES, marks=LONG),
        pytest.param("input", "spark", IN_A_LINE, marks=LONG),
        ("input", "spark", IN_LINES),
    ],
)
def test_a_comment_that_is_not_closed_is_refused(
    lake: Path, open_comment: str, given: str, engine: str
) -> None:
    arguments = ["sql", "--engine", engine, "--lake", str(lake), "--format", "csv"]
    if given == "argument":
        done = CliRunner().invoke(app, [*arguments, open_comment])
    else:
        done = CliRunner().invoke(app, arguments, input=open_comment)
    assert (done.exit_code, done.stdout) == (1, "a\n1\n")
    assert {"duckdb": "unterminated /* comment", "spark": "UNCLOSED_BRACKETED_COMMENT"}[engine] in done.stderr


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_what_fails_while_it_runs_is_one_error(tmp_path: Path, engine: str) -> None:
    lake = create_tables(str(tmp_path / "lake")).path
    add(
        lake,
        "messages",
        {"broker": "b", "log_id": "l", "physical_offset": 0, "topic": "t", "is_system": False},
    )
    add(lake, "reput_progress", progress("l", 1))
    for each in (lake / "messages").rglob("*.parquet"):
        each.unlink()
    done = invoke(lake, "SELECT * FROM messages", "--format", "csv", engine=engine)
    assert (done.exit_code, done.stdout) == (1, ""), done.exception
    assert {"duckdb": "No such file", "spark": "FileNotFoundException"}[engine] in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_input_that_is_no_text_is_one_error(lake: Path, engine: str) -> None:
    done = CliRunner().invoke(
        app,
        ["sql", "--engine", engine, "--lake", str(lake), "--format", "csv"],
        input=b"SELECT 1 AS a;\nSELECT '\xe9';\n",
    )
    assert done.exit_code == 1
    assert "no UTF-8 text" in done.stderr


@pytest.mark.parametrize("nothing", ["", " ; ", "/* none */ -- at all"])
def test_an_argument_without_a_statement(lake: Path, nothing: str) -> None:
    done = invoke(lake, nothing)
    assert done.exit_code == 2
    assert (
        done.stderr
        == f"lakebroker: there is no statement in {nothing!r}; give a statement, or leave the argument out to type statements\n"
    )
