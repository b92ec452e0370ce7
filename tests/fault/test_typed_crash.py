"""The reput killed around the commit to a typed table: each message of the topic has one row, also where a batch comes twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import ROOT
from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.typed_tables import declare
from structured_streaming.lake import create_tables
from structured_streaming.maintenance.check import check_lake
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import QUARANTINE
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.suite.evidence import LONG
from tests.support.spark.reput_runs import reput_once

SCHEMA = {"required": ["id"], "properties": {"id": {"type": "integer"}}}
ORDERS = Declaration("orders", "typed_orders", JSON, (Schema(1, json.dumps(SCHEMA)),))


def written(folder: Path) -> int:
    """A log of a few batches; the messages of the topic."""
    with LogWriter(folder) as writer:
        for number in range(400):
            writer.record("orders", b'{"id":%d}' % number if number % 20 else b"bad", UNIQ_KEY=f"O{number}")
            writer.messages(2)
        writer.raw(b"no record at all".ljust(500, b"?"))
    return 400


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("sink", "step"), [("delta", QUARANTINE.name), pytest.param("spark", ORDERS.table, marks=LONG)]
)
def test_killed_around_the_commit_to_a_typed_table(
    spark: SparkSession, tmp_path: Path, sink: str, step: str
) -> None:
    """Right before it (with the delta sink quarantine comes before the typed tables), and right behind it."""
    store, lake = tmp_path / "store", create_tables(str(tmp_path / "lake")).path
    count = written(store)
    declare(LocalFolder(lake), ORDERS)
    times = "2" if step == ORDERS.table else "1"
    arguments = [str(store), str(lake), sink, step, "80000", times, "driver", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.spark.crashing_reput", *arguments],
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert process.wait(600) == -signal.SIGKILL
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert reput_once(spark, lake, store, sink=sink) > 0
    rows = DeltaTable(str(lake / "typed_orders")).to_pyarrow_table().to_pylist()
    assert len(rows) == len({row["physical_offset"] for row in rows}) == count
    assert sorted(row["id"] for row in rows if row["reason"] is None) == [n for n in range(count) if n % 20]
    assert [problem for found in check_lake(str(lake), [str(store)]) for problem in found.problems] == []
