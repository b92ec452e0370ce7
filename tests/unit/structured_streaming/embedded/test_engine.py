"""The embedded engine: one instant for each statement, whatever becomes of the lake meanwhile, and no Spark."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from structured_streaming.commit.typed_tables import declare
from structured_streaming.commit.upkeep_log import add_to_upkeep
from structured_streaming.embedded.database import connected
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.failures import FilesGoneError
from structured_streaming.embedded.instants import past_instant
from structured_streaming.embedded.limits import Limits
from structured_streaming.embedded.pinned import AttachedTables
from structured_streaming.embedded.running import Running, Watch
from structured_streaming.errors import LakeError, UnreachableError
from structured_streaming.storage.local import LocalFolder
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import DATA_TABLES, TABLES
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from structured_streaming.union.followed import FollowedLake
from structured_streaming.union.instants import Instant
from structured_streaming.upkeep import RETIRED, UNRETIRED, row
from structured_streaming.views import VIEWS
from tests.support.lakes.asked import Opened, Seen
from tests.support.lakes.checks import expected_keys
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, every_key, manifest
from tests.support.waiting import LIMIT_S


def keys(engine: EmbeddedEngine) -> Counter[tuple[str, str]]:
    rows = engine.query(every_key()).read_all()
    return Counter(zip(rows["name"].to_pylist(), rows["key"].to_pylist(), strict=True))


def keys_of(store: Path, below: int | None = None) -> Counter[tuple[str, str]]:
    return Counter(
        {
            (name, "|".join(map(str, key))): count
            for name, held in expected_keys(store).items()
            for key, count in held.items()
            if below is None or key[2] < below
        }
    )


def one(engine: EmbeddedEngine, statement: str, *parameters: object) -> Any:
    """The value of a statement with one."""
    ((value,),) = (row.values() for row in engine.query(statement, parameters).read_all().to_pylist())
    return value


def test_rows_are_those_below_the_progress_whatever_a_crash_left(
    store: Path, lake: Path, opened: Opened
) -> None:
    first, middle, end = cuts(store, 2)
    alone, live = opened(), opened(source={"store": str(store)})
    everything = keys_of(store)
    assert {name for name, _ in everything} >= {"messages", "consumer_offsets", "quarantine"}

    def check(below: int, state: str) -> None:
        assert keys(alone) == keys_of(store, below), state
        assert keys(live) == everything, state

    check(first, "nothing in the lake")
    commit(lake, manifest(lake, store, first, middle))
    check(middle, "half of the log")
    rest = manifest(lake, store, middle, end)
    for table in ("consume_queue", "quarantine"):
        commit(lake, rest, crash_after=table)
        check(middle, f"a crash behind {table}")
    commit(lake, rest)
    check(end, "all in the lake")


def test_the_log_of_a_retired_broker_is_not_read(store: Path, lake: Path, opened: Opened) -> None:
    first, middle, _ = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))
    told: list[str] = []
    engine = opened(source={"store": str(store)}, tell=told.append)
    add_to_upkeep(LocalFolder(lake), row(RETIRED, broker="broker-a"))
    assert one(engine, "SELECT count(*) FROM messages") == 0
    (said,) = told
    assert said.startswith(
        "broker broker-a answers, and is retired: views leave it out, and its log is not read"
    )
    add_to_upkeep(LocalFolder(lake), row(UNRETIRED, broker="broker-a"))
    assert one(engine, "SELECT count(*) FROM messages") == 80


def test_an_answer_under_way_stays_at_its_instant(store: Path, lake: Path, opened: Opened) -> None:
    first, middle, end = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))
    engine = opened()
    statement = (
        "SELECT m.physical_offset FROM messages m, range(1000) UNION ALL SELECT physical_offset FROM messages"
    )
    rows = engine.query(statement)
    begun = rows.read_next_batch()
    commit(lake, manifest(lake, store, middle, end))
    table = DeltaTable(str(lake / "messages"))
    table.optimize.compact()
    later = one(engine, "SELECT count(*) FROM messages")
    held = [begun, *rows]
    offsets = Counter(itertools.chain.from_iterable(batch.column(0).to_pylist() for batch in held))
    assert set(offsets.values()) == {1001}
    assert max(offsets) < middle
    assert (
        len(offsets)
        < later
        == keys_of(store).total()
        - sum(count for (name, _), count in keys_of(store).items() if name != "messages")
    )


def test_a_version_that_was_vacuumed_is_pinned_anew_once(
    store: Path, lake: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, middle, end = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))
    commit(lake, manifest(lake, store, middle, end))
    engine = opened()
    count = one(engine, "SELECT count(*) FROM messages")
    before = FollowedLake(LocalFolder(lake)).newest(["messages"])
    table = DeltaTable(str(lake / "messages"))
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    asked: list[int] = []

    def late(lake: FollowedLake, tables: Any) -> Instant:
        """As it was just before the vacuum, for a statement that begins then."""
        asked.append(1)
        return before if len(asked) == 1 else newest(lake, tables)

    newest = FollowedLake.newest
    monkeypatch.setattr(FollowedLake, "newest", late)
    assert one(engine, "SELECT count(DISTINCT message_id) + count(*) FROM messages") > count
    assert len(asked) == 2
    for each in (lake / "messages").glob("*.parquet"):
        each.unlink()
    with pytest.raises(LakeError, match=r"messages.*\.parquet"):
        engine.query("SELECT max(body) FROM messages")
    assert len(asked) == 4, "tried once more, and not again"


def test_a_statement_whose_files_are_gone_has_its_time_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = opened(limits=Limits(seconds=60))
    now, asked = [0.0], list[Mapping[str, int]]()
    held = AttachedTables.held

    def gone_at_first(
        tables: AttachedTables, cursor: duckdb.DuckDBPyConnection, versions: Mapping[str, int]
    ) -> contextlib.AbstractContextManager[dict[str, str]]:
        asked.append(versions)
        now[0] += 40
        if len(asked) == 1:
            raise FilesGoneError("a file of an old version")
        return held(tables, cursor, versions)

    monkeypatch.setattr(
        "structured_streaming.embedded.engine.Running", partial(Running, clock=lambda: now[0])
    )
    monkeypatch.setattr(AttachedTables, "held", gone_at_first)
    with pytest.raises(LakeError, match="took longer than 60 s"):
        engine.query("SELECT count(*) FROM messages")
    assert len(asked) == 2


DAMAGE = ((0.5, 1.0, True), (0.0, 1.0, True), (0.4, 0.5, True), (0.9, 0.995, False))
"""Cut, emptied, in its rows, and in its head, which does not tell the file."""


def test_a_damaged_file_is_named_with_the_remedy(
    store: Path, lake: Path, opened: Opened, standing: EmbeddedEngine
) -> None:
    commit(lake, manifest(lake, store, *cuts(store, 1)))
    file = max((lake / "messages").glob("*.parquet"), key=lambda each: each.stat().st_size)
    data = file.read_bytes()
    for begin, end, named in DAMAGE:
        first, last = int(len(data) * begin), int(len(data) * end)
        file.write_bytes(data[:first] + (b"" if end == 1 else b"\xff" * (last - first) + data[last:]))
        with pytest.raises(LakeError) as damaged:
            opened().query("SELECT * FROM messages").read_all()
        said = str(damaged.value)
        if named:
            assert said.startswith(f"table messages: its file {file.name} cannot be read ("), said
            assert "`lakebroker lake check` tells what else" in said
        else:
            assert said.startswith("a file of the lake is damaged, perhaps ("), said
            assert "`lakebroker lake check`" in said
        assert str(lake) not in said
    with pytest.raises(LakeError, match=r"^Conversion Error"):
        standing.query("SELECT CAST('x TProtocol /a/messages/b.parquet' AS INT)").read_all()


def test_statements_run_at_a_time(store: Path, lake: Path, opened: Opened) -> None:
    engine = opened(source={"store": str(store)})
    wanted = keys(engine)
    found: list[Counter[tuple[str, str]]] = []
    threads = [threading.Thread(target=lambda: found.append(keys(engine))) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [wanted] * 4


def test_a_reader_that_is_left_gives_back_what_it_holds(
    store: Path, lake: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = list[duckdb.DuckDBPyConnection]()

    def database(*, delta: bool = False) -> duckdb.DuckDBPyConnection:
        found = connected(delta=delta)
        if delta:
            databases.append(found)
        return found

    monkeypatch.setattr("structured_streaming.embedded.engine.connected", database)
    first, middle, end = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))
    engine = opened()
    watch = Seen()
    rows = engine.query("SELECT * FROM messages, range(1000)", watch=watch)
    rows.read_next_batch()
    never = engine.query("SELECT * FROM messages, range(1000)", watch=watch)
    assert len(watch.held) == 2
    del rows, never
    assert not watch.held
    commit(lake, manifest(lake, store, middle, end))
    one(engine, "SELECT count(*) FROM messages")
    attached = "SELECT database_name FROM duckdb_databases() WHERE type = 'delta'"
    assert databases[0].execute(attached).fetchall() == [("messages@2",)]


def test_parameters_and_schemas(standing: EmbeddedEngine) -> None:
    engine = standing
    by_place = one(engine, "SELECT count(*) FROM messages WHERE topic = ?", "topic-1")
    (row,) = (
        engine.query("SELECT count(*) n FROM messages WHERE topic = $t", {"t": "topic-1"})
        .read_all()
        .to_pylist()
    )
    assert by_place == row["n"] == 27
    with pytest.raises(LakeError, match="1"):
        engine.query("SELECT count(*) FROM messages WHERE topic = ?")
    for statement in (
        "SELECT sum(size) AS bytes, topic, store_timestamp, keys, properties, body, origin FROM messages GROUP BY ALL",
        "SELECT * FROM messages",
        "DESCRIBE messages",
        "EXPLAIN SELECT 1",
        "SELECT count_if(is_system) FROM messages",
    ):
        assert engine.describe(statement) == engine.query(statement).schema, statement
    assert engine.describe("SELECT sum(size) AS bytes FROM messages WHERE topic = $1") == pa.schema(
        [("bytes", pa.int64())]
    )
    with pytest.raises(LakeError, match="beyond BIGINT"):
        engine.query("SELECT sum(9223372036854775807) FROM range(3)").read_all()


def test_relations_are_the_tables_and_views_with_their_comments(standing: EmbeddedEngine) -> None:
    engine = standing
    found = {each.name: each for each in engine.relations()}
    for table in TABLES.values():
        assert found[table.name].schema.equals(table.schema, check_metadata=True)
        assert (found[table.name].kind, found[table.name].comment) == ("table", table.comment)
    for view in VIEWS:
        assert (found[view.name].kind, found[view.name].comment) == ("view", view.comment)
        assert found[view.name].schema.equals(view.schema, check_metadata=True)
        rows = engine.query(f"SELECT * FROM {view.name}")
        assert rows.schema.equals(engine.describe(f"SELECT * FROM {view.name}"))
        assert rows.schema.names == view.schema.names
    assert len(found) == len(TABLES) + len(VIEWS)
    listed = engine.query("SHOW TABLES").read_all()["name"].to_pylist()
    assert sorted(listed) == sorted(found)


def test_tables_as_a_batch_left_them(store: Path, lake: Path, opened: Opened) -> None:
    with pytest.raises(LakeError, match="holds no batch yet"):
        opened(as_of="1")
    states, plain = [], opened()
    for start, stop in itertools.pairwise(cuts(store, 3)):
        commit(lake, manifest(lake, store, start, stop))
        states.append(keys(plain))
    told: list[str] = []
    second = opened(as_of="2", tell=told.append)
    assert keys(second) == states[1] != states[2]
    (line,) = told
    assert line.startswith("tables as of batch 2, committed at ")
    assert one(second, "SELECT max(batch) FROM reput_progress") == 2
    (third,) = (
        plain.query("SELECT commit_timestamp FROM reput_progress WHERE batch = 3").read_all().to_pylist()
    )
    assert keys(opened(as_of=third["commit_timestamp"].isoformat())) == states[2]
    messages = DeltaTable(str(lake / "messages"))
    messages.delete("queue_id = 0")
    assert keys(opened(as_of="2")) == states[1], "its versions are there yet"
    messages.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    told.clear()
    assert keys(opened(as_of="1", tell=told.append)) < states[0]
    assert told[0].startswith("version 1 of messages is gone; its newest is read up to batch 1")
    folder = LocalFolder(lake)
    for moment, wrong in (
        ("4", "has no batch 4; it has 1 to 3"),
        ("2001-01-01", "its first batch is 1, committed at"),
        ("9999-01-01T00:00:00Z", "is in the future"),
        ("yesterday", "neither the number of a batch nor a time"),
    ):
        with pytest.raises(LakeError, match=wrong):
            past_instant(folder, FollowedLake(folder), moment, told.append)


def test_brokers_that_are_away_leave_the_tables_part(store: Path, lake: Path, opened: Opened) -> None:
    first, middle, _ = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))
    told: list[str] = []
    source = {"brokers": "127.0.0.1:9", "store": str(store)}
    engine = opened(source=source, tell=told.append)
    assert keys(engine) == keys_of(store), "the log that is there is read all the same"
    (line,) = told
    assert line.startswith(
        "no broker at 127.0.0.1:9: connection refused; of it there is only what the lake holds, as of 2"
    )
    alone = opened(source={"brokers": "127.0.0.1:9"}, tell=told.append)
    assert keys(alone) == keys_of(store, middle)
    with pytest.raises(UnreachableError, match=r"no broker at 127\.0\.0\.1:9.*--strict"):
        opened(source=source, strict=True).query("SELECT count(*) FROM messages")
    assert one(opened(source=source, strict=True), "SELECT 1") == 1, "reads no log"


ALONE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "delta", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.running import Watch
with EmbeddedEngine.open(sys.argv[1], source={"store": sys.argv[2]}) as engine:
    print(engine.query("SELECT count(*) AS n FROM messages").read_all().to_pylist())
"""


def test_it_needs_no_spark(store: Path, lake: Path) -> None:
    first, middle, _ = cuts(store, 2)
    commit(lake, manifest(lake, store, first, middle))
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(lake), str(store)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == "[{'n': 80}]"


def test_a_folder_may_be_named_as_a_url(tmp_path: Path) -> None:
    empty_lake(str(tmp_path / "a lake"))
    with EmbeddedEngine.open(f"file://{tmp_path}/a%20lake") as engine:
        assert one(engine, "SELECT count(*) FROM messages") == 0


def test_every_table_is_there(standing: EmbeddedEngine) -> None:
    engine = standing
    for table in DATA_TABLES:
        assert engine.query(f"SELECT * FROM {table.name}").schema.names == table.schema.names


def test_a_watch_ends_the_statements_under_it_and_no_others(standing: EmbeddedEngine) -> None:
    engine = standing
    endless = "SELECT i FROM range(1000000000000) r(i)"
    watch = Watch()
    mine, other = engine.query(endless, watch=watch), engine.query(endless)
    watch.cancel()
    with pytest.raises(LakeError, match="cancelled"):
        for _ in mine:
            pass
    assert other.read_next_batch().num_rows
    other.close()


def test_a_name_with_its_catalog_is_the_table_at_the_same_instant(
    store: Path, lake: Path, opened: Opened
) -> None:
    start, middle, end = cuts(store, 2)
    commit(lake, manifest(lake, store, start, middle))
    engine = opened()
    place = engine.query("SELECT current_catalog() AS catalog, current_schema() AS db_schema").read_all()
    (catalog,), (schema,) = (column.to_pylist() for column in place.columns)
    assert {each.name for each in engine.relations()} > set(TABLES)
    for until in (middle, end):
        for each in engine.relations() if until == middle else ():
            by_name = f'SELECT count(*) FROM "{catalog}"."{schema}"."{each.name}"'
            assert one(engine, by_name) == one(engine, f"SELECT count(*) FROM {each.name}"), each.name
        for spelt in ("MESSAGES", "Messages_Live"):
            assert one(engine, f'SELECT count(*) FROM "{catalog}"."{schema}"."{spelt}"') > 0
        both = f"SELECT count(*) FROM {catalog}.{schema}.messages m JOIN messages USING (broker, log_id, physical_offset)"
        assert one(engine, both) == one(engine, "SELECT count(*) FROM messages") > 0
        if until == middle:
            commit(lake, manifest(lake, store, middle, end))
    with pytest.raises(LakeError, match="nowhere"):
        engine.query("SELECT * FROM memory.main.nowhere")


def test_names_that_stand_twice_are_described_as_they_come(standing: EmbeddedEngine) -> None:
    engine = standing
    for statement in (
        "SELECT 1 AS a, 2 AS a, 3 AS A",
        "SELECT 1 AS a_1, 2 AS a, 3 AS a",
        "SELECT a.*, b.* FROM topics a, topics b",
    ):
        assert engine.describe(statement).names == engine.query(statement).schema.names, statement


def test_an_instant_of_the_past_takes_no_more_memory_where_the_lake_is_old(lake: Path) -> None:
    count = 150_000
    since = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    numbers = pa.array(range(count), pa.int64())
    tables = pa.array([each.name for each in DATA_TABLES] * count, pa.string())
    offsets = pa.array(range(0, len(tables) + 1, len(DATA_TABLES)), pa.int32())
    batches = pa.table(
        {
            "broker": pa.array([f"b{n % 2}" for n in range(count)]),
            "log_id": pa.array(["l"] * count),
            "end_offset": numbers,
            "batch": numbers,
            **dict.fromkeys(("start_offset", "log_end_offset", "records", "bytes"), numbers),
            "table_versions": pa.MapArray.from_arrays(offsets, tables, pa.array(range(len(tables)), pa.int64())),
            "commit_timestamp": pc.add(
                pa.scalar(since, pa.timestamp("us", "UTC")), pc.multiply(numbers, pa.scalar(1_000_000)).cast(pa.duration("us"))
            ),
        }
    )  # fmt: skip
    write_deltalake(str(lake / "reput_progress"), batches, mode="append")
    whole = batches.nbytes
    del batches, numbers, tables, offsets
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        instant = past_instant(
            lake_folder(str(lake)), FollowedLake(lake_folder(str(lake))), "2026-01-01T02:00:00", print
        )
    finally:
        pa.set_memory_pool(before)
    assert (instant.batch, instant.ends) == (7200, {("b0", "l"): 7200, ("b1", "l"): 7199})
    most = pool.max_memory()
    assert most is not None
    assert 0 < most < whole / 4


ODD_COLUMNS = (
    "{",
    "{}",
    '{"type":"struct","fields":[]}',
    *(
        json.dumps({"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True, "metadata": {}}]})
        for name, kind in (
            ("", "long"),
            ("x", "void"),
            ("x", "decimal(38,50)"),
            ("x", {"type": "struct", "fields": []}),
        )
    ),
)  # fmt: skip


def test_a_typed_table_with_an_odd_schema_is_no_table_and_the_others_are_read(
    store: Path, lake: Path, opened: Opened
) -> None:
    commit(lake, manifest(lake, store, *cuts(store, 1)))
    declared = Declaration(
        "orders", "typed_orders", JSON, (Schema(1, '{"properties": {"id": {"type": "integer"}}}'),)
    )
    declare(LocalFolder(lake), declared)
    engine = opened()
    assert one(engine, "SELECT count(*) FROM typed_orders") == 0
    log = lake / "typed_orders" / "_delta_log"
    version = DeltaTable(str(log.parent)).version()
    metadata = next(
        action["metaData"]
        for action in map(json.loads, (log / f"{0:020}.json").read_text().splitlines())
        if "metaData" in action
    )
    for number, columns in enumerate(ODD_COLUMNS, 1):
        changed = {"metaData": {**metadata, "schemaString": columns}}
        (log / f"{version + number:020}.json").write_text(json.dumps(changed) + "\n")
        for each in (engine, opened()) if number < 3 else (engine,):
            with pytest.raises(LakeError, match="typed_orders"):
                each.query("SELECT count(*) FROM typed_orders")
            assert one(each, "SELECT count(*) FROM messages") > 0
