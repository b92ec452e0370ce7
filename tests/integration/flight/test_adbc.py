"""The ADBC driver for Flight SQL: what it gets is what the engine answers."""

from __future__ import annotations

import datetime
import threading
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pytest

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.flight.service import Sizes
from structured_streaming.tables import TABLES
from tests.support.lakes.served import ENDLESS, MESSAGES, SLOW, TOKEN, Served, counted, serve
from tests.support.waiting import wait_until

QUESTIONS = (
    "SELECT topic, count(*) AS n, sum(size) AS bytes, max(store_timestamp) AS last FROM messages GROUP BY ALL ORDER BY ALL",
    "SELECT message_id, body, keys, properties, origin FROM messages ORDER BY physical_offset LIMIT 50",
    "SELECT key, count(*) FROM message_index GROUP BY key HAVING count(*) > 1 ORDER BY ALL",
    "EXPLAIN SELECT * FROM messages",
    "SELECT 1 WHERE false",
    "SELECT 1 AS a, 2 AS a, NULL AS b, 1.5::DECIMAL(9,2) AS d, DATE '2026-11-25' AS day, 'a'::ENUM('a', 'b') AS e",
    ";SELECT 'ä\U0001f600' AS text; ",
)


def test_every_table_and_view_is_as_the_engine_has_it(served: Served, engine: EmbeddedEngine) -> None:
    relations = engine.relations()
    assert {each.name for each in relations} > set(TABLES)
    with served.adbc() as connection, connection.cursor() as cursor:
        for each in relations:
            statement = f"SELECT * FROM {each.name}"
            expected = engine.query(statement).read_all()
            cursor.execute(statement)
            found = cursor.fetch_arrow_table()
            assert found.schema.names == expected.schema.names
            assert counted(found) == counted(expected), each.name
        cursor.execute("SELECT count(*) FROM messages")
        assert cursor.fetchone() == (MESSAGES,)


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_those_of_the_engine(served: Served, engine: EmbeddedEngine, question: str) -> None:
    expected = engine.query(question).read_all()
    with served.adbc() as connection, connection.cursor() as cursor:
        cursor.execute(question)
        found = cursor.fetch_arrow_table()
    assert found.schema.names == expected.schema.names
    assert [column.to_pylist() for column in found.columns] == [
        column.to_pylist() for column in expected.columns
    ]


def test_parameters_reach_the_statement(served: Served, engine: EmbeddedEngine) -> None:
    now = datetime.datetime.now(datetime.UTC)
    cases: list[tuple[str, list[Any]]] = [
        (
            "SELECT message_id FROM messages WHERE topic = ? AND queue_id = ? ORDER BY ALL LIMIT ?",
            ["topic-1", 1, 7],
        ),
        (
            "SELECT count(*) FROM messages WHERE store_timestamp <= ? AND topic IN (?, ?)",
            [now, "topic-0", "topic-2"],
        ),
        ("SELECT ? AS a, ? AS b, ? AS c, ? AS d, ? AS e", ["it's", 5, 1.5, b"\0\xff", None]),
        ("SELECT count(*) FROM messages WHERE body = ?", [b"body 0 "]),
        ("SELECT $2 AS second, $1 AS first", ["1", "2"]),
    ]
    with served.adbc() as connection, connection.cursor() as cursor:
        for statement, values in cases:
            cursor.execute(statement, values)
            found = cursor.fetch_arrow_table()
            assert found.to_pylist() == engine.query(statement, values).read_all().to_pylist(), statement
            assert found.num_rows
        statement = "SELECT count(*) FROM messages WHERE topic = ?"
        for topic, count in (("topic-1", 100), ("nowhere", 0), ("topic-2", 100)):
            cursor.execute(statement, [topic])
            assert cursor.fetchall() == [(count,)]


def test_a_prepared_statement_tells_its_parameters(served: Served) -> None:
    with served.adbc() as connection, connection.cursor() as cursor:
        schema = cursor.adbc_prepare(
            "SELECT message_id FROM messages WHERE topic = ? AND queue_id >= ? AND born_timestamp BETWEEN ? AND ? AND is_system = ? "
            "AND octet_length(body) > ? LIMIT ?"
        )
    time = pa.timestamp("ms", "UTC")
    assert schema.types == [pa.string(), pa.int32(), time, time, pa.bool_(), pa.string(), pa.int64()]


def test_objects_schemas_and_the_server_are_described(served: Served, engine: EmbeddedEngine) -> None:
    relations = {each.name: each for each in engine.relations()}
    with served.adbc() as connection:
        about = connection.adbc_get_info()
        assert about["vendor_name"] == "lakebroker"
        assert connection.adbc_get_table_types() == ["TABLE", "VIEW"]
        (catalog,) = connection.adbc_get_objects(depth="all").read_all().to_pylist()
        (schema,) = catalog["catalog_db_schemas"]
        for table in schema["db_schema_tables"]:
            relation = relations.pop(table["table_name"])
            assert table["table_type"] == relation.kind.upper()
            assert [each["column_name"] for each in table["table_columns"]] == relation.schema.names
            found = connection.adbc_get_table_schema(relation.name)
            assert found.names == relation.schema.names
            assert found.types == relation.schema.types
            qualified = f'"{catalog["catalog_name"]}"."{schema["db_schema_name"]}"."{relation.name}"'
            with connection.cursor() as cursor:
                cursor.execute(f"SELECT * FROM {qualified} LIMIT 0")
                assert cursor.fetch_arrow_table().schema.names == relation.schema.names
        assert not relations
        only = (
            connection.adbc_get_objects(depth="tables", table_name_filter="consumer%").read_all().to_pylist()
        )
        names = [each["table_name"] for each in only[0]["catalog_db_schemas"][0]["db_schema_tables"]]
        assert names == sorted(each.name for each in engine.relations() if each.name.startswith("consumer"))
        assert "messages" not in names


def test_what_would_write_is_refused(served: Served) -> None:
    with served.adbc() as connection, connection.cursor() as cursor:
        for statement in (
            "DELETE FROM messages",
            "CREATE TABLE x AS SELECT 1",
            "COPY (SELECT 1) TO 'x.csv'",
            "SET threads = 1",
        ):
            with pytest.raises(adbc_driver_manager.NotSupportedError, match="only reads"):
                cursor.execute(statement)
    with served.adbc() as connection, connection.cursor() as cursor:
        cursor.adbc_statement.set_sql_query("DELETE FROM messages")
        with pytest.raises(adbc_driver_manager.NotSupportedError, match="only reads"):
            cursor.adbc_statement.execute_update()
        with pytest.raises(adbc_driver_manager.NotSupportedError, match="only reads"):
            cursor.adbc_ingest("mine", pa.table({"a": [1]}), mode="create")
    unknown = pytest.raises(adbc_driver_manager.ProgrammingError, match="nowhere")
    with served.adbc() as connection, connection.cursor() as cursor, unknown:
        cursor.execute("SELECT * FROM nowhere")


def test_rows_are_streamed_and_a_client_that_has_enough_ends_the_statement(engine: EmbeddedEngine) -> None:
    """One place for a statement: the next waits until nothing is left of the one before."""
    with serve(engine, Sizes(statements=1, wait_s=60)) as served:
        for _ in range(3):
            with served.adbc() as connection, connection.cursor() as cursor:
                cursor.execute(ENDLESS)
                reader = cursor.fetch_record_batch()
                taken = pa.Table.from_batches([reader.read_next_batch() for _ in range(5)])
                assert taken["i"].to_pylist() == list(range(taken.num_rows))
        with served.adbc() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 7")
            assert cursor.fetchall() == [(7,)]


def test_a_large_result_is_whole(served: Served) -> None:
    with served.adbc() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT i, md5(i::VARCHAR) AS text FROM range(300000) r(i)")
        rows, total = 0, 0
        for batch in cursor.fetch_record_batch():
            assert batch["i"][0].as_py() == rows
            rows += batch.num_rows
            total += len(set(batch["text"].to_pylist()))
        assert rows == total == 300_000


def test_a_statement_is_cancelled(engine: EmbeddedEngine) -> None:
    with serve(engine, Sizes(statements=1, wait_s=60)) as served:
        with served.adbc() as connection, connection.cursor() as cursor:
            failed: list[Exception] = []

            def ask() -> None:
                try:
                    cursor.execute(SLOW)
                    cursor.fetchall()
                except adbc_driver_manager.Error as error:
                    failed.append(error)

            asking = threading.Thread(target=ask)
            asking.start()
            wait_until(lambda: cancelled(cursor, asking), "the end of the statement")
            assert len(failed) == 1
        with served.adbc() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 7")
            assert cursor.fetchall() == [(7,)]


def cancelled(cursor: Any, asking: threading.Thread) -> bool:
    cursor.adbc_cancel()
    asking.join(0.2)
    return not asking.is_alive()


def test_the_token_is_a_password_or_a_bearer_token(served: Served) -> None:
    with served.adbc(username="anyone", password=TOKEN) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
    header = "adbc.flight.sql.authorization_header"
    for options in (
        {"username": "anyone", "password": "wrong"},
        {"username": TOKEN, "password": ""},
        {header: "Bearer wrong"},
        {header: f"Bearer {TOKEN}x"},
        {header: TOKEN},
        {"adbc.flight.sql.rpc.call_header.other": "x"},
    ):
        refused = pytest.raises(adbc_driver_manager.ProgrammingError, match="UNAUTHENTICATED")
        with refused, served.adbc(**options) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
