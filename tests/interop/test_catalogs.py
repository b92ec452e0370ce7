"""A lake in a schema of a catalog, committed by Spark's own writer: the same rows as in a folder, whatever is killed.

The commands share a JVM in the short form, in which `maintain` looks at few tables, and have one each in the long.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
from store.log_reader import LogReader
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.tables import DATA_TABLES, TABLES
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.brokers.one_process import OneProcess
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.few_tables import MAINTAINED
from tests.support.lakes.maintained import ReputLake, rows_of
from tests.support.spark.hive_metastore import hive_metastore

MORE = 7
"""Messages behind those of every kind, and behind the lake."""
LEAST = 1 << 20
"""Bytes of a batch."""

pytestmark = pytest.mark.timeout(2400)


@pytest.fixture(scope="module")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Its folder; commands find it by SPARK_CONF_DIR."""
    folder = tmp_path_factory.mktemp("metastore")
    with hive_metastore(folder) as conf, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", str(conf))
        yield folder


def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False)


class Lakebroker:
    """Runs commands, each of which has to end with a status."""

    def __init__(self, runner: Callable[..., subprocess.CompletedProcess[str]]) -> None:
        self._runner = runner

    def __call__(self, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = self._runner(*arguments)
        assert done.returncode == status, done.stderr[-3000:]
        return done


@pytest.fixture(scope="module")
def together(metastore: Path) -> Iterator[Lakebroker]:
    """Commands in one JVM."""
    with OneProcess("tests.support.lakes.few_tables") as commands:
        yield Lakebroker(commands.run)


@LONG
def test_the_rows_are_those_of_a_folder_after_a_kill_between_two_tables(
    metastore: Path, tmp_path: Path
) -> None:
    folder = ReputLake(tmp_path)
    folder.fill()
    location, store = "spark_catalog.killed", str(folder.store)
    script = [
        sys.executable,
        "-m",
        "tests.support.spark.crashing_reput",
        store,
        location,
        "spark",
        "messages",
        "40000",
    ]
    assert (
        subprocess.run(script, cwd=ROOT, check=False, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    )
    tables = metastore / "warehouse" / "killed.db"
    with pytest.raises(AssertionError):
        assert_exact(tables, folder.store)
    done = Lakebroker(alone)("reput", "--store", store, "--lake", location, "--once", "--json")
    assert [json.loads(line)["lag_bytes"] for line in done.stdout.splitlines()][-1] == 0
    assert_exact(tables, folder.store)
    for table in DATA_TABLES:
        ours = rows_of(tables, table.name)
        theirs = rows_of(folder.lake, table.name).cast(ours.schema)
        found = "found_timestamp"
        if found in ours.column_names:
            ours, theirs = ours.drop_columns(found), theirs.drop_columns(found)
        assert ours.equals(theirs), table.name


@pytest.mark.parametrize("form", ["together", pytest.param("alone", marks=LONG)])
def test_every_command_takes_a_catalog(
    metastore: Path, together: Lakebroker, tmp_path: Path, form: str
) -> None:
    run = together if form == "together" else Lakebroker(alone)
    with LogWriter(tmp_path / "store") as writer:
        writer.everything()
        for _ in range(16):
            writer.record("large", bytes(LEAST // 16))
    begun = LogReader(writer.folder).readable_offset
    with LogWriter(tmp_path / "store") as writer:
        writer.messages(MORE)
    schema = f"commands_{form}"
    store, location = str(writer.folder), f"spark_catalog.{schema}"
    made = run("init", "--lake", location)
    assert f"{len(TABLES)} tables are in {location}" in made.stdout
    assert "view" not in made.stderr
    # the second batch has messages alone: what has two files is put together below, and takes Spark seconds for each table
    source = ("reput", "--store", store, "--once", "--json", "--lake", location)
    committed = [json.loads(line) for line in run(*source, "--batch-bytes", str(begun)).stdout.splitlines()]
    assert [each["lag_bytes"] > 0 for each in committed] == [True, False]
    tables = metastore / "warehouse" / f"{schema}.db"
    count = assert_exact(tables, writer.folder)["messages"]
    views = ("messages_live", "message_trace_by_key", *(("consumer_lag", "dead_letters") if EVIDENCE else ()))
    progress = DeltaTable(str(tables / "reput_progress")).to_pyarrow_table().to_pylist()
    asked = [
        "SELECT count(*) FROM messages",
        f"SELECT {schema}.latency_count(array(map(1, 2L), map(9, 3L)))",
        *(f"SELECT count(*) FROM {location}.{name}" for name in views),
    ]
    sql = ("sql", "--lake", location, "--format", "csv")
    first = min(row["batch"] for row in progress)
    answered = run(*sql, "--as-of", str(first), " UNION ALL ".join(asked)).stdout.split()[1:]
    with EmbeddedEngine.open(str(tables), Limits(memory_bytes=256 << 20, seconds=0)) as engine:
        shown = [engine.query(f"SELECT count(*) FROM {name}").read_all()[0][0].as_py() for name in views]
    assert all(shown)
    # views of the catalog have the rows of the newest batch, whatever --as-of says
    assert [int(each) for each in answered] == [count - MORE, 5, *shown]
    maintained = [
        json.loads(line) for line in run("maintain", "--lake", location, "--json").stdout.splitlines()
    ]
    (messages,) = [row for row in maintained if row["table"] == "messages"]
    assert (messages["files_before"], messages["files_after"]) == (2, 1)
    assert [row["table"] for row in maintained] == list(MAINTAINED if form == "together" else TABLES)
    assert assert_exact(tables, writer.folder)["messages"] == count
    with LogWriter(tmp_path / "store") as writer:
        writer.messages(MORE)
    newest = run(*sql, "--store", store, "SELECT count(*) AS n FROM messages")
    assert newest.stdout.split() == ["n", str(count + MORE)]
    # a reput goes on where another one ended; in short its sink does: test_typed_catalog.py, test_catalog_managed.py
    if form == "alone":
        run(*source)
        assert assert_exact(tables, writer.folder)["messages"] == count + MORE
    # the other writer is not let in
    refused = run("reput", "--store", store, "--once", "--lake", str(tables), status=1)
    assert "give --sink spark" in refused.stderr


def test_what_is_no_lake_is_refused_by_name(together: Lakebroker) -> None:
    missing = together("sql", "--lake", "spark_catalog.nowhere", "SELECT 1", status=1)
    assert "lake location spark_catalog.nowhere" in missing.stderr
    unknown = together("init", "--lake", "nowhere.lake", status=1)
    assert "for a folder of that name give ./nowhere.lake" in unknown.stderr
    checked = together("lake", "check", "--lake", "spark_catalog.commands", status=1)
    assert "a folder is needed here" in checked.stderr
    for each in (missing, unknown, checked):
        assert "Traceback" not in each.stderr
