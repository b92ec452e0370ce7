"""Every function and system view of the engine is known as harmless or refused, wherever it stands in a statement."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from structured_streaming.embedded import functions
from structured_streaming.embedded.database import connected, lock
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.errors import LakeError

_REFUSED = """
    add_parquet_key all_profiling_output arrow_scan arrow_scan_dumb checkpoint collations copy_database copy_dir database_list
    database_size delta_domain_metadata delta_filter_pushdown_log delta_filter_pushdown_log_tpcds
    delta_get_transaction_version delta_list_files delta_scan delta_set_transaction_version disable_checkpoint_on_shutdown
    disable_logging disable_object_cache disable_optimizer disable_print_progress_bar disable_profile disable_profiling
    disable_progress_bar disable_verification disable_verify_external disable_verify_fetch_row disable_verify_parallelism
    disable_verify_serializer duckdb_approx_database_count duckdb_connection_count duckdb_constraints
    duckdb_coordinate_systems duckdb_databases duckdb_dependencies duckdb_extensions duckdb_external_file_cache
    duckdb_indexes duckdb_log_contexts duckdb_logs duckdb_logs_parsed duckdb_memory duckdb_optimizers
    duckdb_prepared_statements duckdb_profiling_settings duckdb_schemas duckdb_secret_types duckdb_secrets duckdb_sequences
    duckdb_settings duckdb_table_sample duckdb_temporary_files duckdb_variables enable_checkpoint_on_shutdown enable_logging
    enable_object_cache enable_optimizer enable_print_progress_bar enable_profile enable_profiling enable_progress_bar
    enable_verification extension_versions force_checkpoint functions glob histogram histogram_values import_database
    json_execute_serialized_sql metadata_info pandas_scan parquet_bloom_probe parquet_file_metadata parquet_full_metadata
    parquet_kv_metadata parquet_metadata parquet_scan parquet_schema platform pragma_collations pragma_database_size
    pragma_metadata_info pragma_platform pragma_storage_info pragma_user_agent python_map_function query query_table read_blob
    read_csv read_csv_auto read_duckdb read_json read_json_auto read_json_objects read_json_objects_auto read_ndjson
    read_ndjson_auto read_ndjson_objects read_parquet read_text seq_scan show show_databases show_tables show_tables_expanded
    sniff_csv storage_info table_info test_all_types test_vector_types truncate_duckdb_logs user_agent verify_external
    verify_fetch_row verify_parallelism verify_serializer version which_secret
"""
TABLE_FUNCTIONS_REFUSED = frozenset(_REFUSED.split())
"""Also those of PRAGMA, which the parser makes table functions of, or none that may run."""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    """A database of tables, as it is before a lake's are attached."""
    connection = connected(delta=True)
    lock(connection, Limits(), str(tmp_path_factory.mktemp("temp")), 1 << 20)
    yield connection
    connection.close()


def names(tables: duckdb.DuckDBPyConnection, condition: str) -> set[str]:
    rows = tables.execute(f"SELECT function_name FROM duckdb_functions() WHERE {condition}").fetchall()
    return {row[0].lower() for row in rows}


def test_every_function_is_known(tables: duckdb.DuckDBPyConnection) -> None:
    scalar = names(tables, "function_type IN ('scalar', 'aggregate', 'macro')")
    assert {each for each in scalar if not functions.is_harmless(each)} - functions.REFUSED == set()
    assert {each for each in functions.REFUSED if functions.is_harmless(each)} == set()
    assert functions.FUNCTIONS - scalar == {
        "grouping", "grouping_id", "rollup", "cube", "unnest", "unlist"
    }  # fmt: skip
    others = names(tables, "function_type NOT IN ('scalar', 'aggregate', 'macro')")
    assert others == functions.TABLE_FUNCTIONS | TABLE_FUNCTIONS_REFUSED
    assert functions.TABLE_FUNCTIONS.isdisjoint(TABLE_FUNCTIONS_REFUSED)


def test_every_system_view_is_known(tables: duckdb.DuckDBPyConnection) -> None:
    rows = tables.execute("SELECT view_name FROM duckdb_views() WHERE internal").fetchall()
    assert {row[0] for row in rows} == functions.VIEWS | functions.REFUSED_VIEWS
    assert functions.VIEWS.isdisjoint(functions.REFUSED_VIEWS)


def test_an_extension_without_a_signature_is_loaded_by_nobody_else(tables: duckdb.DuckDBPyConnection) -> None:
    """The database's own is: see `connected`."""
    settings = "SELECT current_setting('allow_unsigned_extensions'), current_setting('lock_configuration')"
    assert tables.execute(settings).fetchone() == (False, True)
    with pytest.raises(duckdb.PermissionException):
        tables.execute("LOAD '/nowhere/other.duckdb_extension'")


CALL = "json_serialize_plan('SELECT 1')"
PLACES = (
    f"SELECT {CALL}",
    "SELECT JSON_Serialize_PLAN('SELECT 1'), count(*) FROM messages",
    "SELECT main.json_serialize_plan('SELECT 1')",
    "SELECT system.main.\"json_serialize_plan\"('SELECT 1')",
    "SELECT ('SELECT 1').json_serialize_plan()",
    "SELECT topic.json_serialize_plan() FROM messages",
    "SELECT json_serialize_plan('SELECT ' || max(topic)) FROM messages",
    "SELECT list_transform(['SELECT 1'], lambda t: json_serialize_plan(t))",
    "SELECT list_transform(['SELECT 1'], t -> t.json_serialize_plan())",
    "SELECT [json_serialize_plan(t) FOR t IN ['SELECT 1'] IF true]",
    "SELECT COLUMNS(c -> json_serialize_plan(c) = '') FROM messages",
    f"SELECT * REPLACE ({CALL} AS topic) FROM messages",
    f"SELECT topic FROM messages ORDER BY {CALL}",
    f"SELECT topic FROM messages LIMIT length({CALL})",
    f"SELECT topic FROM messages OFFSET length({CALL})",
    f"SELECT DISTINCT ON ({CALL}) topic FROM messages",
    f"SELECT 1 FROM messages GROUP BY GROUPING SETS (({CALL}))",
    f"SELECT count(*) FILTER ({CALL} = '') FROM messages",
    f"SELECT string_agg(topic ORDER BY {CALL}) FROM messages",
    f"SELECT sum(1) OVER (ORDER BY {CALL} ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM messages",
    f"SELECT lag(1, 1, length({CALL})) OVER (PARTITION BY topic) FROM messages",
    f"SELECT sum(1) OVER w FROM messages WINDOW w AS (PARTITION BY {CALL})",
    f"SELECT topic FROM messages QUALIFY row_number() OVER (ORDER BY {CALL}) = 1",
    f"SELECT topic FROM messages GROUP BY topic HAVING {CALL} = ''",
    f"SELECT * FROM messages WHERE {CALL} = ''",
    f"SELECT * FROM messages a JOIN messages b ON {CALL} = ''",
    f"SELECT * FROM messages, LATERAL (SELECT {CALL})",
    f"SELECT * FROM messages AT (VERSION => {CALL})",
    f"VALUES ({CALL})",
    f"FROM range(length({CALL}))",
    f"WITH a AS MATERIALIZED (SELECT {CALL}) FROM a",
    f"WITH RECURSIVE a(n) USING KEY (n) AS (SELECT 'a' UNION SELECT {CALL} FROM a) FROM a",
    f"PIVOT messages ON topic IN ('a') USING max({CALL})",
    f"UNPIVOT (SELECT 1 AS a, 2 AS b) ON (a + length({CALL})), b",
    f"SELECT 1 UNION ALL SELECT length({CALL})",
    f"SELECT CASE WHEN {CALL} = '' THEN 1 END",
    f"SELECT EXISTS (SELECT {CALL})",
    f"SELECT TRY({CALL}::INT)",
    f"SELECT {{'a': [{CALL}]}}",
    f"DESCRIBE SELECT {CALL}",
    f"SUMMARIZE SELECT {CALL}",
    f"EXPLAIN SELECT {CALL}",
    f"EXPLAIN ANALYZE SELECT {CALL}",
)


@pytest.mark.parametrize("statement", PLACES)
def test_a_refused_function_is_refused_wherever_it_stands(standing: EmbeddedEngine, statement: str) -> None:
    for ask in (standing.query, standing.describe):
        with pytest.raises(LakeError, match=r"(?i)json_serialize_plan\(\) is refused"):
            ask(statement)


OTHERS = {
    "SELECT current_setting('temp_directory')": r"current_setting\(\)",
    "SELECT any_value(current_setting('allowed_directories')) FROM messages": r"current_setting\(\)",
    "SELECT write_log('x')": r"write_log\(\)",
    "SELECT getvariable('x')": r"getvariable\(\)",
    "SELECT getenv('HOME')": r"getenv\(\)",
    "SELECT nextval('x')": r"nextval\(\)",
    "SELECT sleep_ms(100)": r"sleep_ms\(\)",
    "SELECT json_structure(decode(body)) FROM messages": r"json_structure\(\)",
    "SELECT json_contains(decode(body), '1') FROM messages": r"json_contains\(\)",
    "SELECT variant_typeof(decode(body)::JSON) FROM messages": r"variant_typeof\(\)",
    "SELECT decode(body)::JSON::VARIANT FROM messages": "type VARIANT",
    'SELECT TRY_CAST(decode(body) AS STRUCT(a "Variant"[])) FROM messages': "type VARIANT",
    "SELECT pg_sleep(1)": r"pg_sleep\(\)",
    "SELECT json_deserialize_sql('{{}}'::JSON)": r"json_deserialize_sql\(\)",
    "SELECT write_blob('{lake}/x', 'x'::BLOB), count(*) FROM messages": r"write_blob\(\)",
    "SELECT * FROM copy_dir('{lake}', '{lake}/x')": r"copy_dir\(\)",
    "SELECT * FROM pg_settings": "pg_settings",
    "SUMMARIZE pg_catalog.pg_settings": "pg_settings",
    "WITH pg_settings AS (SELECT 1) SELECT * FROM pg_catalog.pg_settings": "pg_settings",
    "SELECT path, (SELECT count(*) FROM messages) FROM duckdb_databases": "duckdb_databases",
    "PRAGMA database_size": r"pragma_database_size\(\)",
}


@pytest.mark.parametrize("statement", OTHERS)
def test_others_are_refused(standing: EmbeddedEngine, standing_lake: Path, statement: str) -> None:
    with pytest.raises(LakeError, match=f"{OTHERS[statement]} is refused"):
        standing.query(statement.format(lake=standing_lake))


def test_what_a_later_engine_has_is_refused(
    standing: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if `md5` and `pg_type` had come with it: before anything is planned, which would run what is constant."""
    monkeypatch.setattr(functions, "FUNCTIONS", functions.FUNCTIONS - {"md5"})
    monkeypatch.setattr("structured_streaming.embedded.planning.SYSTEM_VIEWS", functions.VIEWS - {"pg_type"})
    for ask in (standing.query, standing.describe):
        with pytest.raises(LakeError, match=r"md5\(\) is refused"):
            ask("SELECT md5('x') FROM range(CAST('it was planned' AS INT))")
        with pytest.raises(LakeError, match=r"pg_type is refused"):
            ask("SELECT 1 FROM pg_type, range(CAST('it was planned' AS INT))")
        with pytest.raises(LakeError, match="explode does not exist"):
            ask("SELECT explode(keys) FROM messages")


def test_no_function_opens_a_connection(standing: EmbeddedEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        where = f"https://127.0.0.1:{listener.getsockname()[1]}/x"
        with pytest.raises(LakeError, match=r"json_serialize_plan\(\) is refused"):
            standing.query(
                f"SELECT json_serialize_plan('SELECT * FROM delta_scan(''{where}'')'), count(*) FROM messages"
            ).read_all()
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_names_of_with_and_typed_operators_are_known(standing: EmbeddedEngine) -> None:
    for statement in (
        "WITH a AS (SELECT 1 AS x), B AS (FROM a) SELECT * FROM b, A",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
        "SELECT * FROM (WITH c AS (SELECT 1) FROM c)",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM memory.main.messages",
        "SELECT path FROM duckdb_databases",
        "SHOW DATABASES",
        "SELECT latency_count(array_agg(latency)) FROM broker_stats",
        "SELECT topic, grouping(topic) FROM messages GROUP BY ROLLUP (topic)",
        "SELECT formatReadableSize(max(size)), 'a' COLLATE de FROM messages",
        "SELECT topic ILIKE 'a%', topic SIMILAR TO 'a', topic GLOB 'a*', keys[1:2], properties['a'], - size, topic || 'x' FROM messages",
        "SELECT * FROM (UNPIVOT (SELECT 1 AS a, 2 AS b) ON a, b)",
    ):
        standing.query(statement).read_all()


@pytest.mark.parametrize("function", sorted(functions.INTO_STRUCTURES))
def test_a_structure_is_a_text_that_is_not_deep(standing: EmbeddedEngine, function: str) -> None:
    """They go down into it by calls within calls: a deep one ends the process."""
    (row,) = (
        standing.query(f"""SELECT {function}('{{"id": 7}}', '{{"id": "BIGINT"}}').id AS id""")
        .read_all()
        .to_pylist()
    )
    assert row == {"id": 7}
    deep = "[" * 101 + '"INT"' + "]" * 101
    for structure in (f"'{deep}'", "repeat('[', 3)", "(SELECT max(topic) FROM messages)", "?", "NULL"):
        with pytest.raises(
            LakeError, match=rf"{function}\(\) wants a text as its structure, nested at most 100 deep"
        ):
            standing.query(
                f"SELECT {function}(decode(body), {structure}) FROM messages",
                ["x"] if structure == "?" else (),
            )
    with pytest.raises(LakeError, match="wants a text as its structure"):
        standing.query(f"SELECT topic.{function}('{deep}') FROM messages")


@pytest.mark.parametrize("statement", ["SELECT `topic` FROM messages", "SELECT explode(keys) FROM messages"])
def test_who_writes_sparks_sql_is_told(standing: EmbeddedEngine, statement: str) -> None:
    with pytest.raises(
        LakeError, match=r"This is DuckDB's SQL: .*`lakebroker sql --engine spark` takes Spark's"
    ):
        standing.query(statement)
