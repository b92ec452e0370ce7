"""What tools ask about: names by patterns, keys, types, and numbers that mean what Flight SQL says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebroker_pb.arrow.flight.protocol.sql import flight_sql_pb2 as flight_sql
from structured_streaming.embedded.interface import Relation
from structured_streaming.flight import metadata, sql_info
from structured_streaming.flight.failures import CallError
from structured_streaming.tables import TABLES

PLACE = metadata.Place("lake", "main")
RELATIONS: Any = [
    Relation(name, kind, "", TABLES["messages"].schema, key)
    for name, kind, key in (
        ("messages", "table", TABLES["messages"].key),
        ("messages_live", "view", ()),
        ("typed_orders", "table", ("broker", "physical_offset")),
        ("a%b", "view", ()),
    )
]


def named(**asked: Any) -> list[str]:
    found: list[str] = metadata.tables(PLACE, RELATIONS, **asked)["table_name"].to_pylist()
    return found


def test_tables_are_found_by_patterns_and_in_order() -> None:
    assert named() == ["a%b", "messages", "messages_live", "typed_orders"]
    assert named(pattern="mess%") == ["messages", "messages_live"]
    assert named(pattern="MESSAGES") == ["messages"]
    assert named(pattern="message_") == ["messages"]
    assert named(pattern="a\\%b") == ["a%b"]
    assert named(pattern="messages\\_live") == ["messages_live"]
    assert named(pattern="") == []
    assert named(pattern="%", types=["VIEW"]) == ["a%b", "messages_live"]
    assert named(types=["SYSTEM TABLE"]) == []
    assert named(catalog="LAKE") == named()
    assert named(catalog="") == named(catalog="other") == []
    assert named(db_schema_pattern="ma%") == named()
    assert named(db_schema_pattern="x%") == []


def test_a_pattern_is_bounded_and_cheap() -> None:
    assert named(pattern="%a" * 100 + "b") == []
    with pytest.raises(CallError, match="256 at most"):
        named(pattern="%" * 257)


def test_schemas_have_types_and_comments_for_drivers() -> None:
    table = metadata.tables(PLACE, RELATIONS, pattern="messages", with_schema=True)
    schema = pa.ipc.read_schema(pa.py_buffer(table["table_schema"][0].as_py()))
    assert schema.equals(TABLES["messages"].schema)
    facts = {name.decode(): value.decode() for name, value in schema.field("keys").metadata.items()}
    assert facts["ARROW:FLIGHT:SQL:TYPE_NAME"] == "VARCHAR[]"
    assert facts["ARROW:FLIGHT:SQL:REMARKS"] == "keys"
    assert facts["ARROW:FLIGHT:SQL:TABLE_NAME"] == "messages"


def test_row_keys_are_primary_keys() -> None:
    for table in RELATIONS:
        found = metadata.primary_keys(PLACE, RELATIONS, None, "main", table.name.upper())
        assert tuple(found["column_name"].to_pylist()) == table.key
        assert found["key_sequence"].to_pylist() == list(range(1, len(table.key) + 1))
    assert metadata.primary_keys(PLACE, RELATIONS, None, None, "typed_orders").num_rows == 2
    assert metadata.primary_keys(PLACE, RELATIONS, "other", None, "messages").num_rows == 0
    assert metadata.primary_keys(PLACE, RELATIONS, None, None, "nothing").num_rows == 0


def test_catalogs_and_schemas() -> None:
    assert metadata.catalogs(PLACE).to_pylist() == [{"catalog_name": "lake"}]
    row = {"catalog_name": "lake", "db_schema_name": "main"}
    assert metadata.db_schemas(PLACE, None, None).to_pylist() == [row]
    assert metadata.db_schemas(PLACE, "lake", "m_in").to_pylist() == [row]
    assert metadata.db_schemas(PLACE, "other", None).num_rows == 0


def test_the_server_says_what_it_is() -> None:
    table = sql_info.sql_info([], statement_bytes=1000, statements=4, idle_s=600)
    table.validate(full=True)
    facts = {flight_sql.SqlInfo.Name(row["info_name"]): row["value"] for row in table.to_pylist()}
    assert facts["FLIGHT_SQL_SERVER_NAME"] == "lakebroker"
    assert facts["FLIGHT_SQL_SERVER_READ_ONLY"] is True
    assert facts["SQL_MAX_STATEMENT_LENGTH"] == 1000
    assert facts["FLIGHT_SQL_SERVER_STATEMENT_TIMEOUT"] == 600_000
    assert "PIVOT" in facts["SQL_KEYWORDS"]
    asked = sql_info.sql_info([504, 99_999], statement_bytes=1, statements=1, idle_s=1)
    assert asked.to_pylist() == [{"info_name": 504, "value": '"'}]


def test_types_of_columns_are_known_by_number() -> None:
    every = sql_info.xdbc_type_info(None)
    assert every["data_type"].to_pylist() == sorted(every["data_type"].to_pylist())
    (found,) = sql_info.xdbc_type_info(flight_sql.XDBC_BIGINT).to_pylist()
    assert (found["type_name"], found["column_size"]) == ("BIGINT", 19)
    assert sql_info.xdbc_type_info(12345).num_rows == 0
    names = set(every["type_name"].to_pylist())
    for table in TABLES.values():
        for field in table.schema:
            named = sql_info.type_name(field.type)
            assert named in names or named.endswith("[]") or named.startswith(("MAP(", "STRUCT("))
