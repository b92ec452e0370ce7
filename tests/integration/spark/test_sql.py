"""`lakebroker sql` by Spark, over real Delta: it only reads, in UTC, loses nothing, and says in one line what is wrong.

What every engine shares (how statements are divided, how results are printed, what is refused before): the unit tests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from broker_gateway.cli.sql_engines import Form, of_spark
from broker_gateway.cli.sql_session import run_text
from structured_streaming.errors import LakeError, ReadOnlyError
from structured_streaming.read_only import Statement, check_read_only
from structured_streaming.sql import query
from structured_streaming.union.names import LakeNames
from tests.support.lakes.hostile_row import ANSWER, AT_US, hostile_lake
from tests.support.machines.zones import local_time

STARTING = "lakebroker: starting Spark ...\n"


def invoke(lake: Path, *arguments: str, given: str = "") -> Any:
    """`given` is standard input, which is read where there is no statement among the arguments."""
    command = ["sql", "--engine", "spark", "--lake", str(lake), *arguments]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, command, input=given)


@pytest.fixture
def far_away() -> Iterator[None]:
    with local_time("Asia/Kathmandu"):
        yield


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return hostile_lake(tmp_path / "lake", commit_timestamp=AT_US)


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
    "SELECT sum(a) OVER w FROM (SELECT 1 a) WINDOW w AS (ORDER BY reflect('java.lang.System', 'getProperty', 'a'))": "reflect()",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'setProperty', 'a', 'b')": "a function that IDENTIFIER names",
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
    "SELECT IDENTIFIER('topic') FROM messages",
)


def test_it_only_reads(spark: SparkSession, lake: Path) -> None:
    before = sorted(lake.rglob("*"))
    for statement, kind in WRITES.items():
        with pytest.raises(ReadOnlyError) as error:
            query(spark, statement.format(lake=lake))
        assert str(error.value).startswith(kind), statement
    for statement in READS:
        check_read_only(Statement(spark, statement.format(lake=lake).rstrip(";")))
    assert sorted(lake.rglob("*")) == before
    done = invoke(lake, "SELECT 1; CREATE TEMP VIEW mine AS TABLE messages; DELETE FROM messages")
    assert done.exit_code == 1
    assert "--write" in done.stderr
    assert "lakebroker: tables alone, as of 2023-11-14 22:13:20 UTC" in done.stderr
    assert "add --brokers, --namesrv or --store to include what is newer" in done.stderr
    assert sorted(lake.rglob("*")) == before
    rows = DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows
    assert rows
    script = "SELECT 1 AS one;\nDELETE FROM messages\nWHERE topic = 'no such topic';\n/*\nDELETE FROM nowhere;\n*/\nDELETE FROM messages"
    done = invoke(lake, "--write", "--format", "csv", given=script)
    assert (done.exit_code, done.stdout) == (
        0,
        f"one\n1\nnum_affected_rows\n0\nnum_affected_rows\n{rows}\n",
    ), done.stderr
    assert done.stderr.startswith(STARTING)
    assert DeltaTable(str(lake / "messages")).to_pyarrow_table().num_rows == 0


def test_results_are_in_utc_and_lose_nothing(
    spark: SparkSession, lake: Path, tmp_path: Path, far_away: None
) -> None:
    # delta-rs, which wrote the rows, panics at such a name
    lake = lake.rename(tmp_path / "a 'lake' ü*[x]{y,z}#")
    statement = f"""SELECT {", ".join(ANSWER)},
                   INTERVAL 1 YEAR AS years, INTERVAL 1 SECOND AS seconds, DATE '2024-02-29' AS day,
                   timestamp_micros(-1) AS early, CAST(1.1 AS DECIMAL(3, 2)) AS `decimal` FROM messages"""
    done = invoke(lake, statement, "--format", "json")
    assert done.exit_code == 0, done.exception
    expected = {
        **ANSWER,
        "years": "INTERVAL '1' YEAR",
        "seconds": "INTERVAL '01' SECOND",
        "day": "2024-02-29",
        "early": "1969-12-31T23:59:59.999999Z",
        "decimal": "1.10",
    }
    assert json.loads(done.stdout) == [expected]
    twice = query(spark, "SELECT 1 AS a, 2 AS a, '[/head]' AS `[/head]`")
    assert (twice.schema.names, twice.num_rows) == (["a", "a", "[/head]"], 1)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("SELEC 1", "PARSE_SYNTAX_ERROR"),
        ("SELECT nothing FROM delta.`{lake}/messages`", "`nothing`"),
    ],
)
def test_bad_sql_is_one_error_without_a_trace(
    spark: SparkSession, lake: Path, statement: str, why: str
) -> None:
    with pytest.raises(LakeError) as error:
        query(spark, statement.format(lake=lake))
    said = str(error.value)
    assert why in said
    assert "stack" not in said.lower()
    assert "Relation" not in said, "Spark's plan, with every column"
    assert "pos" in said, "where in the statement"


def test_what_fails_while_it_runs_is_one_error(spark: SparkSession, lake: Path) -> None:
    for each in (lake / "messages").rglob("*.parquet"):
        each.unlink()
    with pytest.raises(LakeError, match="FileNotFoundException") as error:
        query(spark, f"SELECT * FROM delta.`{lake}/messages`")
    assert "Traceback" not in str(error.value)
    assert "\tat " not in str(error.value)


def test_a_table_with_a_damaged_log_is_told_of_and_others_are_read(spark: SparkSession, lake: Path) -> None:
    (lake / "topics" / "_delta_log" / f"{0:020d}.json").write_text("no commit\n")
    done = invoke(lake, "SELECT count(*) AS n FROM messages", "--format", "csv")
    assert (done.exit_code, done.stdout.split()) == (0, ["n", "1"])
    assert f"table {lake}/topics: " in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT 1\nAS a; -- none; at all\nSELECT 2 AS a;/*\nSELECT 3;\n*/ SELECT 4 FROM nowhere; SELECT 5", "nowhere"),
        ("SELECT 1 AS a; SELECT 2 AS a; /* open;\nSELECT 3;\n", "UNCLOSED_BRACKETED_COMMENT"),
    ],
    ids=["no such table", "open comment"],
)  # fmt: skip
def test_statements_end_with_the_first_that_fails(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    nothing = LakeNames(spark, {}, ())
    with pytest.raises(LakeError, match=said):
        run_text(of_spark(spark, Form("csv", escape=True), nothing, write=False), text)
    assert capsys.readouterr().out.split() == ["a", "1", "a", "2"]


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Not the copy in Spark's home, which each would compile anew (`workers_python.py`)."""
    imported = spark.sparkContext.range(1).map(lambda _: str(__import__("pyspark").__file__)).collect()
    assert imported == [pyspark.__file__]
