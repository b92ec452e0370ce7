"""Statements that would do harm: refused before they run, or bounded, each with a clear error."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from structured_streaming.embedded.engine import EmbeddedEngine, Limits
from structured_streaming.embedded.pinned import AttachedTables
from structured_streaming.embedded.results import taken
from structured_streaming.embedded.running import Running, Watch
from structured_streaming.errors import LakeError, ReadOnlyError
from tests.support.lakes.asked import Opened, Seen
from tests.support.lakes.empty import empty_lake
from tests.support.waiting import LIMIT_S, wait_until

WRITES = {
    "DELETE FROM messages": "DELETE",
    "UPDATE messages SET topic = 'x'": "UPDATE",
    "INSERT INTO messages SELECT * FROM messages": "INSERT",
    "MERGE INTO messages m USING topics t ON m.topic = t.topic WHEN MATCHED THEN DELETE": "MERGE_INTO",
    "TRUNCATE messages": "DELETE",
    "CREATE TABLE t AS SELECT 1": "CREATE",
    "CREATE VIEW v AS SELECT 1": "CREATE",
    "CREATE OR REPLACE TEMP VIEW messages AS SELECT 1": "CREATE",
    "CREATE MACRO m() AS TABLE FROM read_text('{file}')": "CREATE",
    "DROP VIEW messages": "DROP",
    "ALTER TABLE messages ADD COLUMN x INT": "ALTER",
    "COPY messages TO '{lake}/messages/x.parquet'": "COPY",
    "COPY (SELECT 1) TO '{lake}/x.csv'": "COPY",
    "EXPORT DATABASE '{lake}/x'": "EXPORT",
    "EXPLAIN COPY messages TO '{lake}/messages/x.parquet'": "COPY",
    "EXPLAIN ANALYZE COPY messages TO '{lake}/messages/x.parquet'": "COPY",
    "explain /* a */ analyze -- b\n copy messages to '{lake}/messages/x.parquet'": "COPY",
    "EXPLAIN (ANALYZE, FORMAT JSON) COPY messages TO '{lake}/messages/x.parquet'": "COPY",
    "ATTACH '{file}' AS x": "ATTACH",
    "ATTACH '{lake}/messages' AS x (TYPE delta)": "ATTACH",
    "DETACH memory": "DETACH",
    "INSTALL httpfs": "INSTALL",
    "LOAD httpfs": "LOAD",
    "SET memory_limit = '100GB'": "SET",
    "SET enable_external_access = true": "SET",
    "RESET lock_configuration": "RESET",
    "SET VARIABLE x = 1": "SET",
    "USE x": "USE",
    "CHECKPOINT": "CHECKPOINT",
    "CALL enable_logging(storage = 'file', storage_path = '{lake}/log')": "CALL",
    "BEGIN": "BEGIN",
    "PREPARE p AS SELECT 1": "PREPARE",
    "EXECUTE p": "EXECUTE",
    "VACUUM": "VACUUM",
    "IMPORT DATABASE '{lake}'": "IMPORT",
    "PRAGMA enable_profiling": "PRAGMA",
}
OF_DATA = {"DELETE", "UPDATE", "INSERT", "MERGE_INTO", "CREATE", "DROP", "ALTER"}
"""What Spark would do with --write."""
FILES = {
    "SELECT * FROM read_text('{file}')": r"read_text\(\) is refused",
    "SELECT * FROM read_blob('{lake}/reput_progress/_delta_log/*')": r"read_blob\(\) is refused",
    "SELECT * FROM read_parquet('{lake}/messages/*.parquet')": r"read_parquet\(\) is refused",
    "SELECT * FROM glob('{lake}/*')": r"glob\(\) is refused",
    "SELECT * FROM '{file}'": "does not exist",
    'SELECT * FROM "{lake}/messages/x.parquet"': "x.parquet|file system operations are disabled",
    "SELECT * FROM delta_scan('{lake}/messages')": r"delta_scan\(\) is refused",
    "SELECT * FROM (SELECT 1), LATERAL (SELECT * FROM system.main.delta_scan('{lake}/messages'))": r"delta_scan\(\) is refused",
    "WITH a AS (SELECT (SELECT count(*) FROM sniff_csv('{file}'))) FROM a": r"sniff_csv\(\) is refused",
    "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')": r"query\(\) is refused",
    "SELECT * FROM query(if(current_database() = 'x', 'SELECT 1', 'SELECT 2'))": r"query\(\) is refused",
    "SELECT * FROM query_table('messages')": r"query_table\(\) is refused",
    "EXPLAIN ANALYZE SELECT * FROM query('SELECT 1')": r"query\(\) is refused",
    "SELECT * FROM json_execute_serialized_sql('{{}}')": r"json_execute_serialized_sql\(\) is refused",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = '{lake}/log')": r"enable_logging\(\) is refused",
    "DESCRIBE SELECT * FROM read_text('{file}')": r"read_text\(\) is refused",
    "SUMMARIZE SELECT * FROM parquet_metadata('{lake}/messages/*')": r"parquet_metadata\(\) is refused",
    "SELECT * FROM checkpoint()": r"checkpoint\(\) is refused",
    "SELECT * FROM duckdb_secrets()": r"duckdb_secrets\(\) is refused",
    "SELECT getenv('HOME')": "getenv",
    "SELECT * FROM sqlite_scan('{file}', 't')": r"sqlite_scan\(\) is refused",
    "SELECT * FROM read_csv('{file}')": r"read_csv(_auto)?\(\) is refused",
    "SELECT * FROM 'http://127.0.0.1:9/x.parquet'": "does not exist|disabled",
    "SELECT any_value(current_setting('allowed_directories')) FROM messages": r"current_setting\(\) is refused",
    "SELECT 1; SELECT 2": "2 statements at once; give one at a time",
    "SELECT 1; COPY messages TO '{lake}/x'": "2 statements at once",
    "EXPLAIN SELECT 1; DELETE FROM messages": "2 statements at once",
    f"/* /* */{' ' * 60}*/ DELETE FROM messages": "DELETE",
    f"/* /* */{' ' * 60}*/ EXPLAIN SELECT 1": "EXPLAIN of what",
    f"EXPLAIN{' ' * 60_000}DELETE FROM messages": "DELETE",
    f"{'/**/' * 1_500}{' ' * 60_000}INSTALL httpfs": "INSTALL",
    "PIVOT messages ON topic USING count(*)": "name its values",
    "": "there is no statement",
    "-- nothing": "there is no statement",
    "EXPLAIN": "syntax error",
    "SELECT * FROM store": "store does not exist",
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "secret.txt"
    file.write_text("secret\n")
    return file


def test_it_only_reads(standing_lake: Path, standing: EmbeddedEngine, file: Path) -> None:
    def times() -> dict[Path, int]:
        there = (*standing_lake.parent.rglob("*"), *file.parent.rglob("*"))
        return {path: path.stat().st_mtime_ns for path in there}

    before = times()
    for statement, kind in WRITES.items():
        with pytest.raises(LakeError) as refused:
            standing.query(statement.format(lake=standing_lake, file=file))
        if isinstance(refused.value, ReadOnlyError):
            said = str(refused.value)
            assert said.startswith((f"{kind} may change data", f"{kind} is refused: ")), statement
            assert ("--write" in said) is (kind in OF_DATA), statement
        else:
            assert "Error: " in str(refused.value), statement
        with pytest.raises(LakeError):
            standing.describe(statement.format(lake=standing_lake, file=file))
    assert times() == before
    standing.query("SELECT 1")


@pytest.mark.parametrize("statement", FILES)
def test_it_reads_nothing_but_tables(
    standing_lake: Path, file: Path, standing: EmbeddedEngine, statement: str
) -> None:
    for ask in (standing.query, standing.describe):
        with pytest.raises(LakeError, match=FILES[statement]) as refused:
            ask(statement.format(lake=standing_lake, file=file))
        assert "secret\n" not in str(refused.value)
        assert "Traceback" not in str(refused.value)


def test_very_many_parameters_without_values_are_an_error(standing: EmbeddedEngine) -> None:
    with pytest.raises(LakeError, match=r"arameter|nested|values"):
        standing.query(f"SELECT [{', '.join('?' * 20_000)}]")
    assert standing.query("SELECT 1").read_all().num_rows == 1, "the engine goes on"


def test_what_is_no_unicode_is_refused(standing: EmbeddedEngine) -> None:
    for statement, given in (
        ("SELECT '\udcff'", []),
        ("SELECT ?", ["\udcff"]),
        ("SELECT $a", {"a": "\udcff"}),
    ):
        with pytest.raises(LakeError, match="is no UTF-8 text"):
            standing.query(statement, given)


def test_names_of_variables_are_no_tables(standing: EmbeddedEngine) -> None:
    hidden = [1, 2, 3]
    with pytest.raises(LakeError, match="hidden"):
        standing.query("SELECT * FROM hidden")
    assert hidden


HARMLESS = (
    "SELECT * FROM range(3), generate_series(1, 3), unnest([1, 2])",
    "FROM duckdb_tables() SELECT table_name",
    "SELECT * FROM json_each('{\"a\": 1}')",
    "PIVOT (SELECT topic, tag FROM messages) ON topic IN ('a', 'b') USING count(*)",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r",
    "SELECT *, row_number() OVER (PARTITION BY topic) FROM messages QUALIFY true",
    "TABLE messages",
    "SHOW TABLES",
    "SHOW ALL TABLES",
    "SUMMARIZE messages",
    "DESCRIBE SELECT * FROM messages",
    "EXPLAIN ANALYZE SELECT count(*) FROM messages",
    "VALUES (1), (2)",
    "SELECT * FROM messages a ASOF JOIN messages b ON a.topic = b.topic AND a.store_timestamp >= b.store_timestamp",
    "SELECT * FROM messages WHERE topic IN (FROM topics SELECT topic)",
    "PRAGMA table_info('messages')",
    "select 'a;b' -- ;\n;",
)


@pytest.mark.parametrize("statement", HARMLESS)
def test_what_only_reads_is_answered(standing: EmbeddedEngine, statement: str) -> None:
    standing.query(statement).read_all()


def test_a_view_that_reads_a_table_twice_with_one_filter_is_explained(standing: EmbeddedEngine) -> None:
    for view in ("consumer_lag", "consumer_lag_system"):
        rows = standing.query(f"EXPLAIN ANALYZE SELECT * FROM {view} WHERE topic = 'topic-1'").read_all()
        assert "Files" in str(rows["explain_value"][0])


@pytest.mark.parametrize("options", ["ANALYZE", "(ANALYZE, FORMAT JSON)", ""])
def test_a_plan_does_not_tell_where_files_are(
    standing_lake: Path, standing: EmbeddedEngine, options: str
) -> None:
    files = [each.stem for each in (standing_lake / "messages").glob("*.parquet")]
    query = "SELECT * FROM messages a JOIN messages b USING (topic) JOIN consume_queue c USING (topic) ORDER BY a.body"
    (text,) = standing.query(f"EXPLAIN {options} {query}").read_all()["explain_value"].to_pylist()
    cells = "".join(text.split("│")).replace(" ", "").replace("\n", "")
    assert str(standing_lake) not in cells
    assert not any(each[-9:] in cells for each in files)
    assert "parquet" not in text
    assert text.count("messages@") == 2, "the rest of the plan is there"


def spilled(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_a_result_larger_than_memory_is_streamed_and_goes_to_the_temporary_folder(
    tmp_path: Path, opened: Opened
) -> None:
    folder = tmp_path / "temp"
    folder.mkdir()
    engine = opened(limits=Limits(16 << 20, str(folder), 1 << 30, threads=1))
    rows = engine.query("SELECT range AS n, md5(range::VARCHAR) AS m FROM range(500000) ORDER BY m")
    found, last, most = 0, "", 0
    for batch in rows:
        assert last < batch["m"][0].as_py()
        found, last = found + batch.num_rows, batch["m"][-1].as_py()
        most = max(most, spilled(folder))
    assert found == 500_000
    assert most > 0, "more than the memory was sorted"
    engine.close()
    assert list(folder.iterdir()) == []


def test_more_than_memory_and_folder_is_an_error(tmp_path: Path, opened: Opened) -> None:
    engine = opened(limits=Limits(16 << 20, str(tmp_path), 4 << 20, threads=1))
    with pytest.raises(
        LakeError, match=r"needs more than the temporary folder that it may use.*--temp-folder"
    ):
        engine.query("SELECT range AS n, md5(range::VARCHAR) AS m FROM range(500000) ORDER BY m").read_all()
    with pytest.raises(LakeError, match=r"needs more than the memory that it may use.*--memory"):
        engine.query("SELECT list(md5(range::VARCHAR)) FROM range(500000)").read_all()
    assert engine.query("SELECT 1").read_all().num_rows == 1, "the engine goes on"
    with pytest.raises(LakeError, match=r"temporary folder /nowhere: No such file.*--temp-folder"):
        opened(limits=Limits(temp_folder="/nowhere"))
    with pytest.raises(LakeError, match=r"1,024 bytes is too little for any statement.*--memory"):
        opened(limits=Limits(memory_bytes=1024))


ENDLESS = (
    "SELECT sum(a.range % 7 * b.range) FROM range(100000000000) a, range(100000000000) b",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r",
    "SELECT a.range, b.range FROM range(100000000000) a, range(100000000000) b WHERE a.range + b.range < 0",
)


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedEngine]:
    """Whose statements have no time. That an engine goes on behind one that was ended, cancelled ones show."""
    lake = empty_lake(str(tmp_path_factory.mktemp("hurried") / "lake"))
    with EmbeddedEngine.open(str(lake), Limits(256 << 20, seconds=0.1, threads=1)) as engine:
        yield engine


COLUMNS = ", ".join(f"{at} AS c{at}" for at in range(20_000))
HARD_TO_PLAN = (
    "SELECT count(*) FROM " + ", ".join(f"range(2) t{at}" for at in range(500)),
    f"SELECT {COLUMNS}",
    f"SELECT * FROM messages WHERE queue_id IN ({', '.join(map(str, range(100_000)))})",
    "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r, range(2)) SELECT count(*) FROM r",
)


@pytest.mark.parametrize("at", range(len(ENDLESS) + len(HARD_TO_PLAN)))
def test_a_statement_that_takes_too_long_is_ended(hurried: EmbeddedEngine, at: int) -> None:
    with pytest.raises(LakeError, match=r"took longer than 0\.1 s; give it more time"):
        hurried.query((*ENDLESS, *HARD_TO_PLAN)[at]).read_all()


def test_a_description_that_takes_too_long_is_ended(hurried: EmbeddedEngine) -> None:
    with pytest.raises(LakeError, match=r"took longer than 0\.1 s"):
        hurried.describe(f"SELECT {COLUMNS}")


DEEP = {
    "(": ("(", "1", ")"),
    "[": ("[", "1", "]"),
    "NOT": ("NOT ", "true", ""),
    "-": ("- ", "1", ""),
    "abs": ("abs(", "1", ")"),
    "CASE": ("CASE WHEN true THEN ", "1", " END"),
    "FROM": ("(SELECT * FROM ", "messages", ")"),
    "+": ("1 + ", "1", ""),
    "::INT": ("", "1", "::INT"),
}


@pytest.mark.parametrize("levels", [150, 100_000])
@pytest.mark.parametrize("what", DEEP)
def test_a_statement_of_many_levels_is_answered_or_refused(
    standing: EmbeddedEngine, what: str, levels: int
) -> None:
    before, middle, behind = DEEP[what]
    statement = f"SELECT {'* FROM ' if what == 'FROM' else ''}{before * levels}{middle}{behind * levels}"
    for ask in (standing.query, standing.describe):
        try:
            ask(statement)
        except LakeError as error:
            refused = str(error)
            assert any(
                text in refused
                for text in ("memory exhausted", "Max expression depth", "nested too deep", "Recursion level")
            )
        else:
            assert levels < 100_000
    assert standing.query("SELECT 1").read_all().num_rows == 1, "the engine goes on"


def test_rows_without_end_are_ended(hurried: EmbeddedEngine) -> None:
    with pytest.raises(LakeError, match=r"took longer than 0\.1 s"):
        for _ in hurried.query("SELECT range FROM range(100000000000000)"):
            pass


def test_waiting_costs_a_statement_no_time() -> None:
    now = [0.0]
    with duckdb.connect() as connection:
        running = Running(connection, 2.0, lambda: now[0])

        def execute() -> None:
            connection.execute("SELECT range FROM range(100000000000000)")
            now[0] += 1.5

        rows = taken(running, execute, contextlib.ExitStack())
        for _ in range(3):
            now[0] += 60  # whoever takes the rows is slow: that is not the engine's time
            rows.read_next_batch()
        with running.working():
            now[0] += 1
        with pytest.raises(LakeError, match="took longer than 2 s"):
            rows.read_next_batch()


def test_what_waits_for_the_lake_is_not_stuck(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structured_streaming.embedded.running.PATIENCE_S", 0.0)
    stuck = list[Running]()
    engine, watch = opened(), Seen(stuck.append)
    waits, lake = threading.Event(), threading.Lock()
    held = AttachedTables.held

    def slow(
        tables: AttachedTables, cursor: duckdb.DuckDBPyConnection, versions: Mapping[str, int]
    ) -> contextlib.AbstractContextManager[dict[str, str]]:
        waits.set()
        with lake:
            return held(tables, cursor, versions)

    monkeypatch.setattr(AttachedTables, "held", slow)
    with ThreadPoolExecutor(1) as pool:
        with lake:  # as one has it that reads the lake
            asked = pool.submit(lambda: engine.query("SELECT count(*) FROM messages", watch=watch).read_all())
            assert waits.wait(LIMIT_S)
            watch.cancel()
            (found,) = watch.held
            for _ in range(5):  # the watch looks at it
                found.look()
                assert not found.is_stuck
            assert not asked.done()
            assert stuck == []
        with pytest.raises(LakeError, match=r"^the statement was cancelled$"):
            asked.result()
    with duckdb.connect() as connection:
        running = Running(connection, 0.0)
        with running.working():
            running.cancel()
            wait_until(lambda: running.is_stuck, "its own work is")


@pytest.mark.parametrize("at", range(len(ENDLESS) + 1))
def test_a_statement_is_cancelled_from_another_thread(standing: EmbeddedEngine, at: int) -> None:
    watch = Seen()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: standing.query((*ENDLESS, HARD_TO_PLAN[0])[at], watch=watch).read_all())
        wait_until(lambda: any(each.since is not None for each in watch.seen), "it is begun")
        watch.cancel()
        with pytest.raises(LakeError, match=r"^the statement was cancelled$"):
            asked.result()
    assert standing.query("SELECT 1").read_all().num_rows == 1, "the engine goes on"


def test_where_no_thread_can_be_started_the_statement_fails_and_the_next_is_looked_after(
    hurried: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        patch.setattr("structured_streaming.embedded.running._ROOM_S", 0.0)
        with pytest.raises(LakeError, match="too much runs at a time for another thread"):
            hurried.query("SELECT 1", watch=Watch())
    with pytest.raises(LakeError, match=r"took longer than 0\.1 s"):
        hurried.query(ENDLESS[0]).read_all()


def test_a_thread_is_started_once_what_a_large_statement_took_is_given_back(
    standing: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, []

    def none_left_at_first(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_left_at_first)
    assert standing.query("SELECT 1", watch=Watch()).read_all().num_rows == 1
    assert refused


def test_closing_ends_what_is_under_way(lake: Path) -> None:
    engine = EmbeddedEngine.open(str(lake))
    rows = engine.query("SELECT range FROM range(100000000000000)")
    rows.read_next_batch()
    engine.close()
    with pytest.raises(LakeError, match="cancelled"):
        for _ in rows:
            pass
