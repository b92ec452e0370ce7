"""The Iceberg mirror read by Spark with Apache Iceberg's own runtime, and in an object store by pyiceberg."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT, ProcessError
from structured_streaming.maintenance.maintain import maintain
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import TABLES
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import of_every_type
from tests.support.lakes.iceberg_readers import assert_mirrored, assert_same, by_pyiceberg, place, shown
from tests.support.lakes.maintained import ReputLake
from tests.support.machines.object_store import BUCKET, object_store
from tests.support.spark.environments import environment, interpreter
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.timeout(2400)
SPARK = "4.0"
RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1"
LONG_LIMIT_S = 3 * LIMIT_S


def runtime() -> Path:
    """Iceberg's jar for Spark, from Maven Central once."""
    folder = ROOT / ".cache" / "iceberg-spark"
    with filled_once(folder, RUNTIME) as missing:
        if missing:
            copy = ["dependency:copy", f"-Dartifact={RUNTIME}", f"-DoutputDirectory={folder}"]
            done = subprocess.run(["mvn", "-q", "-B", *copy], capture_output=True, text=True, check=False)
            if done.returncode:
                raise ProcessError(f"{RUNTIME} cannot be fetched: {done.stdout[-1500:]}")
    return next(folder.glob("*.jar"))


def test_spark_reads_every_row_and_its_upkeep_removes_no_file(tmp_path: Path) -> None:
    """Of tables of every type; in evidence, of all. Those that pyiceberg reads are all: `test_in_an_object_store_the_same_rows`."""
    lake, output = ReputLake(tmp_path), tmp_path / "output"
    output.mkdir()
    lake.fill(6)
    maintain(str(lake.lake), mirrored=True)
    lake.fill()
    maintain(str(lake.lake))
    files = sorted(path for name in TABLES for path in (lake.lake / name).rglob("*"))
    names = list(TABLES) if EVIDENCE else [table.name for table in of_every_type()]
    read = [interpreter(SPARK), "-m", "tests.support.spark.iceberg_spark"]
    done = subprocess.run(
        [*read, str(runtime()), str(lake.lake), str(output), *names],
        **{"cwd": ROOT, "env": environment(), "capture_output": True, "text": True, "timeout": LONG_LIMIT_S},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name in names:
        expected = DeltaTable(str(lake.lake / name)).to_pyarrow_table()
        assert_same(name, expected, pq.read_table(output / f"{name}.parquet"))
    found = json.loads(done.stdout.splitlines()[-1])
    assert all("GC is disabled" in said for said in found["said"].values()), found
    assert sorted(path for name in TABLES for path in (lake.lake / name).rglob("*")) == files
    assert found["inserted"] == 1
    reports = {report.table: report.mirror for report in maintain(str(lake.lake))}
    mirrored = reports["quarantine"]
    assert mirrored is not None
    assert "is somebody else's" in mirrored.anew
    assert_mirrored(lake.lake)
    if EVIDENCE:  # else pyiceberg alone has seen it
        again = subprocess.run(
            [*read, str(runtime()), str(lake.lake), str(output), "quarantine"],
            **{"cwd": ROOT, "env": environment(), "capture_output": True, "text": True},
            timeout=LONG_LIMIT_S,
        )
        assert again.returncode == 0, again.stderr[-3000:]
        assert pq.read_table(output / "quarantine.parquet").num_rows == 0


def test_in_an_object_store_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = f"s3://{BUCKET}/a lake"
    with object_store(tmp_path / "objects") as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        lake = ReputLake(tmp_path, location=location)
        lake.fill(3)
        maintain(location, mirrored=True)
        lake.fill()
        reports = {report.table: report for report in maintain(location)}
        assert [report.problems for report in reports.values()] == [[]] * len(TABLES)
        mirrored = reports["messages"].mirror
        assert mirrored is not None
        assert (mirrored.anew, mirrored.metadata) == ("", 2)
        access = {
            "s3.endpoint": store.url,
            "s3.access-key-id": store.environment["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": store.environment["AWS_SECRET_ACCESS_KEY"],
            "s3.region": store.environment["AWS_REGION"],
        }
        for name in TABLES:
            table, delta = (
                StaticTable.from_metadata(place(location, name), access),
                DeltaTable(f"{location}/{name}"),
            )
            assert shown(table) == delta.version()
            assert_same(name, delta.to_pyarrow_table(), by_pyiceberg(table))
        folder = lake_folder(location)
        assert folder.child("_iceberg").exists()
        maintain(location, mirrored=False)
        assert sorted(folder.names()) == sorted(TABLES)
