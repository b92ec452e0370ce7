"""A lake in an S3 store: nobody's file overwritten, the same rows as in a folder, whatever is killed or away."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from broker_gateway.lake.reader import Lake
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.logs import LogWriter, written
from store.log_reader import LogReader
from structured_streaming.commit.delta_commit import DeltaCommitSink, LakeProgress
from structured_streaming.commit.upkeep_log import add_to_upkeep
from structured_streaming.errors import LakeError, LocationError, StoreAwayError
from structured_streaming.lake import create_tables, open_lake
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.copying import CopyReport, copy_lake
from structured_streaming.maintenance.erasure import purge
from structured_streaming.maintenance.maintain import lake_mirror, maintain
from structured_streaming.maintenance.retention import expire
from structured_streaming.reput_query import RETRIES, RETRIES_ONCE
from structured_streaming.retention_rules import parsed
from structured_streaming.staging.wanted import Wanted
from structured_streaming.storage.folder import Folder
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import CONSUME_QUEUE, REPUT_PROGRESS, TABLES
from structured_streaming.upkeep import RETENTION, row
from tests.suite.evidence import EVIDENCE, LONG
from tests.support.brokers import with_constants
from tests.support.brokers.one_process import OneProcess
from tests.support.lakes.maintained import ReputLake, assert_same, rows_of
from tests.support.lakes.maintained import reput as committed
from tests.support.lakes.marked import MarkedLake
from tests.support.machines.object_store import BUCKET, ObjectStore, object_store
from tests.support.waiting import LIMIT_S

RECORDS = 6_000 if EVIDENCE else 3_000
"""More than one batch of 1 MiB: the store goes away while there is more to read."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("objects")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture
def location(store: ObjectStore, request: pytest.FixtureRequest) -> str:
    return f"s3://{BUCKET}/{request.node.name}"


@pytest.fixture
def folder(location: str) -> Folder:
    return lake_folder(location)


def test_of_many_who_put_a_file_one_has_it(folder: Folder) -> None:
    def put(writer: int) -> bool:
        try:
            folder.put_if_absent("a", str(writer).encode())
        except FileExistsError:
            return False
        return True

    for _ in range(8):
        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(put, range(8)))
        assert [str(writer).encode() for writer, has in enumerate(won) if has] == [folder.read("a")]
        folder.remove("a")
    folder.remove("a")


def test_erased_messages_are_in_no_object(store: ObjectStore, location: str, tmp_path: Path) -> None:
    files = store.folder / BUCKET / location.rpartition("/")[2]
    lake = MarkedLake(tmp_path, location=location, files=files)
    lake.write(2)
    lake.checkpoint()
    lake.write(1)
    assert [report.problems for report in maintain(location, mirrored=True) if report.problems] == []
    lake.write(1)
    lake.remember()
    before = lake.others()
    assert len(lake.found()) > 20
    lake.erase()
    found = purge(lake.folder, lake_mirror(lake.folder, None))
    assert [each.problems for each in found.tables if each.problems] == []
    assert lake.found() == []
    after = lake.others()
    assert set(before.pop("delivery_events")) <= set(after.pop("delivery_events"))
    assert after == before
    lake.write_others()
    lake.assert_whole()
    assert [each for each in check_lake(location, [str(lake.store)]) if each.problems] == []


def test_who_put_a_file_and_lost_the_answer_may_put_it_again(folder: Folder) -> None:
    folder.put_if_absent("a", b"mine")
    folder.put_if_absent("a", b"mine")
    with pytest.raises(FileExistsError):
        folder.put_if_absent("a", b"another's")
    assert folder.read("a") == b"mine"


def test_what_is_there_and_what_is_not(folder: Folder) -> None:
    assert (folder.exists(), folder.is_file(), folder.obstacle()) == (False, False, None)
    with pytest.raises(FileNotFoundError):
        folder.names()
    assert (folder.stamp("a"), folder.status("a"), folder.has("a")) == (None, None, False)
    for reads in (folder.read, folder.readable):
        with pytest.raises(FileNotFoundError):
            reads("a")
    folder.put_if_absent("a", b"one")
    folder.child("t").put_if_absent("b", b"")
    assert sorted(folder.names()) == ["a", "t"]
    assert folder.exists()
    assert folder.parent.child(folder.uri.rpartition("/")[2]).has("a")
    assert folder.child("a").is_file()
    before, status = folder.stamp("a"), folder.status("a")
    assert status is not None
    assert status.size == 3
    assert abs(status.modified - time.time()) < 60
    folder.remove("a")
    folder.put_if_absent("a", b"two")
    assert folder.stamp("a") != before
    folder.replace("a", b"three")
    folder.replace("c", b"four")
    assert [folder.read(name) for name in "ac"] == [b"three", b"four"]
    folder.child("t").remove_all()
    assert (sorted(folder.names()), folder.child("t").exists()) == (["a", "c"], False)


def test_files_are_read_up_to_the_first_that_is_missing(folder: Folder) -> None:
    for number in (*range(40), 41):
        folder.put_if_absent(str(number), str(number).encode())
    assert list(folder.read_each(map(str, itertools.count()))) == [str(each).encode() for each in range(40)]
    assert list(folder.read_each(["40"])) == []


def test_a_file_of_several_parts_is_there_whole_or_not_at_all(folder: Folder) -> None:
    rows = pa.table({"number": range(100_000), "body": [os.urandom(200) for _ in range(100_000)]})
    for finished in (False, True):
        file = folder.open_new("a")
        with pq.ParquetWriter(file.target, rows.schema) as writer:
            writer.write_table(rows, row_group_size=20_000)
        assert not folder.has("a")
        if not finished:
            file.discard()
            continue
        size, status = file.finish(), folder.status("a")
        assert status is not None
        assert size == status.size > 20_000_000
    opened = pq.ParquetFile(folder.readable("a"))
    assert opened.read_row_group(3).equals(rows.slice(60_000, 20_000))
    assert opened.read().equals(rows)


def test_the_rows_of_a_folder_also_where_the_store_went_away_within_a_batch_and_after_maintenance(
    tmp_path: Path, store: ObjectStore, location: str
) -> None:
    there, here = ReputLake(tmp_path / "a", location=location), ReputLake(tmp_path / "b")
    there.store, there.reader = here.store, here.reader
    there.fill(1)
    (start, end), *_ = there.batches()
    sink = DeltaCommitSink(location, lambda step: store.kill() if step == CONSUME_QUEUE.name else None)
    try:
        with pytest.raises(LakeError) as broken_off:
            sink.commit(there.manifest(start, end))
    finally:
        store.start()
    assert isinstance(broken_off.value.__cause__, StoreAwayError)
    assert there.batches()[0] == (start, end)
    for lake in (there, here):
        lake.fill()
    assert there.transactions() == here.transactions()
    expected = {
        name: rows.drop_columns(_OWN) if name in _PROGRESS else rows for name, rows in here.rows().items()
    }
    assert_same(expected, _comparable(there))
    reports = maintain(location, retain_s=3600)
    assert [report.problems for report in reports] == [[]] * len(TABLES)
    assert next(report for report in reports if report.table == "messages").files_after == 1
    assert_same(expected, _comparable(there))
    assert [each for found in check_lake(location) for each in found.problems] == []
    assert there.transactions() == here.transactions()


_PROGRESS = ("reput_progress",)
_OWN = ["table_versions", "commit_timestamp"]


def _comparable(lake: ReputLake) -> dict[str, pa.Table]:
    return {
        name: rows.drop_columns(_OWN) if name in _PROGRESS else rows for name, rows in lake.rows().items()
    }


def test_checkpoints_are_made_and_read(tmp_path: Path, location: str) -> None:
    reader = LogReader(written(tmp_path / "store", "broker-a", 220, 500))
    committed(tmp_path / "store", location, 1_500, Wanted(frozenset({CONSUME_QUEUE.name})))
    for table in (CONSUME_QUEUE, REPUT_PROGRESS):
        assert lake_folder(location).child(table.name).child("_delta_log").has("_last_checkpoint")
    assert LakeProgress(location).position(reader.broker, reader.log_id) == reader.readable_offset


def test_the_gateway_reads_the_progress(tmp_path: Path, location: str) -> None:
    there = Lake(location)
    assert there.dispatched_to("broker-a", "x") == 0
    lake = ReputLake(tmp_path, location=location)
    reader = lake.reader
    for batches in (1, 2, None):
        lake.fill(batches)
        known = LakeProgress(location).position(reader.broker, reader.log_id)
        assert there.dispatched_to(reader.broker, reader.log_id) == known
    assert known == reader.readable_offset


def test_what_is_wrong_is_named(store: ObjectStore, location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LocationError, match="does not exist"):
        open_lake(location)
    with pytest.raises(LocationError, match=r"nobucket.*cannot be read.*NoSuchBucket"):
        create_tables("s3://nobucket/lake")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8")
    with pytest.raises(LocationError, match="AWS_ALLOW_HTTP=true"):
        create_tables(location)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(LocationError, match=r"127\.0\.0\.1:9.*(error|refused)"):
        create_tables(location)


IMPATIENT = {
    "structured_streaming.reput_query.LONGEST_WAIT_S": 0.2,
    "structured_streaming.reput_query.SIGNAL_S": 0.1,
    "structured_streaming.absence.TELL_S": 0.0,
}
"""Waits less between two starts of a query, and tells of each in vain what is away."""
TRIES = RETRIES + 2 if EVIDENCE else 3
"""Starts of a query in vain. That there is no end to them is in tests/unit/structured_streaming/test_reput.py."""


def reput(
    store: Path, location: str, *arguments: str, constants: Mapping[str, float] = MappingProxyType({})
) -> subprocess.Popen[str]:
    given = ("--store", str(store), "--lake", location, "--json", *arguments)
    return subprocess.Popen(
        with_constants.command(constants, "reput", *given),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@LONG  # in a folder tests/fault has it; that what is begun in a store goes on exactly: `test_the_rows_of_a_folder_also_…`
def test_a_reput_killed_between_two_tables(tmp_path: Path, location: str) -> None:
    lake = ReputLake(tmp_path / "folder")
    lake.fill()
    crashing = [sys.executable, "-m", "tests.support.spark.crashing_reput"]
    process = subprocess.Popen(
        [*crashing, str(lake.store), location, "delta", "messages", "60000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    finally:
        end(process)
    process = reput(lake.store, location, "--once")
    try:
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
    assert process.returncode == 0, said
    for name in TABLES:
        if name not in _PROGRESS:
            assert rows_of(location, name).equals(rows_of(lake.lake, name)), name
    assert [each for found in check_lake(location) for each in found.problems] == []


def test_a_reput_waits_for_a_store_that_is_away_and_a_signal_ends_it_where_one_hangs(
    tmp_path: Path, store: ObjectStore, location: str
) -> None:
    log = written(tmp_path / "store", "broker-a", RECORDS)
    process = reput(log, location, "--batch-bytes", str(1 << 20), constants=IMPATIENT)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["batch"] == 1
        store.kill()
        with LogWriter(log) as writer:  # there is more to commit, also where all was read before that
            writer.messages(5)
        said = list(itertools.islice(filter(_waits, process.stderr), TRIES))
        assert len(said) == TRIES, process.communicate()
        store.start()
        for line in process.stdout:
            if json.loads(line)["lag_bytes"] == 0:
                break
        reader = LogReader(log)
        assert LakeProgress(location).position(reader.broker, reader.log_id) == reader.readable_offset
        assert [each for found in check_lake(location, [str(log)]) for each in found.problems] == []
        store.hang()
        with LogWriter(log) as writer:
            writer.messages(5)
        process.terminate()
        _, last = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
        store.kill()
        store.start()
    assert process.returncode == 0, last
    assert "Traceback" not in last
    ending = f"stopped; where the lake {location} is was not read within 3 s; what was committed stands"
    assert last.splitlines()[-1] == f"lakebroker: {ending}"


def _waits(line: str) -> bool:
    return "the query starts again when that is over" in line


@LONG  # how often it tries is shown by a unit test, what such a store is by `test_away_is_not_the_same_as_wrong`
def test_a_run_that_ends_by_itself_does_so_without_the_store(
    tmp_path: Path, store: ObjectStore, location: str
) -> None:
    log = written(tmp_path / "store", "broker-a", RECORDS)
    process = reput(log, location, "--batch-bytes", str(1 << 20), "--once", constants=IMPATIENT)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        store.kill()
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
        store.start()
    assert process.returncode == 1, said
    assert len(list(filter(_waits, said.splitlines()))) == RETRIES_ONCE
    assert "Traceback" not in said
    assert "error sending request" in said.splitlines()[-1]


@LONG  # until that is noticed, minutes of tries are over; that such a store is away: `storage/test_objects.py`
def test_a_reput_tells_that_its_store_hangs(tmp_path: Path, store: ObjectStore, location: str) -> None:
    log = written(tmp_path / "store", "broker-a", RECORDS)
    process = reput(log, location, "--batch-bytes", str(1 << 20), constants=IMPATIENT)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        store.hang()
        assert next(filter(_waits, process.stderr), None), process.communicate()
        process.terminate()
        _, said = process.communicate(timeout=LIMIT_S)
    finally:
        end(process)
        store.kill()
        store.start()
    assert process.returncode == 0, said
    assert "Traceback" not in said
    ending = f"stopped; where the lake {location} is was not read within 3 s; what was committed stands"
    assert said.splitlines()[-1] == f"lakebroker: {ending}"


def test_away_is_not_the_same_as_wrong(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(location: str) -> OSError:
        with pytest.raises(OSError, match="lake") as found:
            lake_folder(location).names()
        return found.value

    assert not isinstance(asked("s3://nobucket/lake"), StoreAwayError)
    for name, value in (("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ENDPOINT_URL", f"{store.url}/")):
        monkeypatch.setenv(name, value)  # another address: a client keeps what it began with
    assert not isinstance(asked(f"s3://{BUCKET}/lake"), StoreAwayError)
    for address in ("http://127.0.0.1:9", "http://no-such-host.invalid:80"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        assert isinstance(asked(f"s3://{BUCKET}/lake"), StoreAwayError)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_sql_reads_it(tmp_path: Path, location: str, engine: str) -> None:
    lake = ReputLake(tmp_path, location=location)
    lake.fill()
    statement = "SELECT count(*) AS messages, max(physical_offset) AS last FROM messages"
    rows = lake.rows()["messages"]
    last = max(rows["physical_offset"].to_pylist())
    asked = ("sql", "--engine", engine, "--lake", location, "--format", "csv")
    # Spark reads a lake in the same way where a log is beside it
    beside = [("--store", str(lake.store))] if EVIDENCE or engine == "duckdb" else []
    with OneProcess() as lakebroker:
        for further in ((), *beside):
            done = lakebroker.run(*asked, *further, statement)
            assert (done.returncode, done.stdout) == (0, f"messages,last\n{rows.num_rows},{last}\n"), (
                done.stderr
            )
        done = lakebroker.run(*asked, "--as-of", "1000000", statement)
        assert done.returncode == 1
        assert "has no batch 1000000" in done.stderr


def test_a_lake_is_copied_from_a_folder_into_the_store_and_back(tmp_path: Path, location: str) -> None:
    lake, back = ReputLake(tmp_path / "a", batch_bytes=60_000), tmp_path / "back"
    lake.fill(3)
    first = copy_lake(str(lake.lake), location)
    assert (first.kept, first.shared, first.removed) == (0, 0, 0)
    assert copy_lake(str(lake.lake), location) == CopyReport(kept=first.files)
    lake.fill()
    maintain(str(lake.lake))
    later = copy_lake(str(lake.lake), location)
    assert later.files > 0
    assert later.removed > 0
    copy_lake(location, str(back))
    for place in (location, str(back)):
        assert [each for found in check_lake(place, [str(lake.store)]) for each in found.problems] == []
        assert_same(lake.rows(), {name: rows_of(place, name) for name in TABLES})
    assert LakeProgress(str(back)).offsets == LakeProgress(str(lake.lake)).offsets
    with pytest.raises(LocationError, match="is a copy of another lake"):
        copy_lake(str(ReputLake(tmp_path / "b").lake), location)
    with LogWriter(lake.store) as writer:
        writer.messages(5)
    committed(lake.store, location)
    with pytest.raises(LocationError, match="was written to since it was copied"):
        copy_lake(str(lake.lake), location)


def test_retention_in_the_store(tmp_path: Path, location: str) -> None:
    lake = ReputLake(tmp_path, location=location)
    lake.fill()
    add_to_upkeep(lake_folder(location), row(RETENTION, rules=parsed("topic-1=1d")))
    before = lake.rows()
    reports = expire(lake_folder(location), datetime.now(UTC) + timedelta(days=2))
    assert [report.problems for report in reports] == [[], [], []]
    after = lake.rows()
    for name in ("messages", "message_index"):
        assert after[name].equals(before[name].filter(pc.not_equal(before[name]["topic"], "topic-1"))), name
    assert [each for found in check_lake(location, [str(lake.store)]) for each in found.problems] == []
