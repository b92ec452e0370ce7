"""Erased records make no rows, whatever table they would have had rows in; how a queue ends is known all the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.logs import BORN_MS, encoded, pending
from store.scan import scan
from structured_streaming.rows import records as records_module
from structured_streaming.rows.pieces import Piece
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.careful import stage_carefully
from structured_streaming.staging.wanted import EVERYTHING
from structured_streaming.tables import JOURNAL_TOPIC
from tests.support.lakes.staged import StagedLake


def log() -> tuple[bytes, list[int]]:
    return encoded(
        pending(f"t{n % 2}", f"body {n}".encode(), n % 3, KEYS=f"key{n} shared", UNIQ_KEY=f"ID{n}", TAGS="a")
        for n in range(24)
    )


def test_they_are_in_no_table_but_where_they_are_the_last_of_their_queue(tmp_path: Path) -> None:
    data, starts = log()
    lake = StagedLake(tmp_path / "lake")
    erased = tuple(starts[n] for n in (0, 5, 6, 23))
    found = lake.take(data, erased=erased)
    left = set(starts) - set(erased)
    for table in ("message_index", "messages"):
        assert set(found[table]["physical_offset"].to_pylist()) == left
    assert set(found["consume_queue"]["physical_offset"].to_pylist()) == left | {starts[23]}
    last = found["consume_queue"].to_pylist()[-1]
    assert (last["topic"], last["queue_id"], last["queue_offset"]) == ("t1", 2, 23)
    assert found["quarantine"].num_rows == 0
    lake.assert_readable()


def test_one_that_would_be_in_quarantine_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, starts = encoded([pending("t", b"x" * 5000), pending("t", b"y"), pending("t", b"z" * 5000)])
    monkeypatch.setattr(records_module, "LARGEST_RECORD", 4000)
    lake = StagedLake(tmp_path / "lake")
    assert lake.take(data)["quarantine"]["physical_offset"].to_pylist() == [starts[0], starts[2]]
    found = lake.take(data, erased=(starts[0],))
    assert found["quarantine"]["physical_offset"].to_pylist() == [starts[2]]


def test_a_child_that_stages_leaves_them_out_too(tmp_path: Path) -> None:
    data, starts = log()
    lake = StagedLake(tmp_path / "lake")
    part = LogRange("store:-", "b", "l", 0, len(data), len(data), erased=(starts[3], starts[4]))
    (manifest,) = stage_carefully(str(lake.folder), part, iter([(0, data)]), EVERYTHING)
    rows = {row["table"]: row["rows"] for row in manifest.to_pylist()}
    assert rows["messages"] == len(starts) - 2


def test_all_of_a_scan_may_be_erased(tmp_path: Path) -> None:
    data, starts = log()
    found = StagedLake(tmp_path / "lake").take(data, erased=tuple(starts))
    assert {name: rows.num_rows for name, rows in found.items() if rows.num_rows} == {"consume_queue": 6}


def test_the_kept_rows_are_the_ends_of_their_queues_whatever_the_order_of_the_log() -> None:
    data, starts = log()
    whole = scan(data, 0)
    rng = np.random.default_rng(7)
    for _ in range(50):
        erased = np.sort(rng.choice(np.array(starts), rng.integers(1, len(starts)), replace=False))
        records = Piece("b", "l", None, whole, erased).records()
        ends: dict[tuple[int, int], int] = {}
        for n, start in enumerate(starts):
            ends[n % 2, n % 3] = start
        wanted = {start for start in ends.values() if start in set(erased.tolist())}
        kept = records.queue_ends
        assert (set() if kept is None else set(kept.scan.physical_offset.tolist())) == wanted
        assert set(records.scan.physical_offset.tolist()) == set(starts) - set(erased.tolist())


def test_a_record_of_the_journal_makes_a_row_for_each_record_that_it_erases(tmp_path: Path) -> None:
    batch = pb.Batch(version=3, timestamp_ms=BORN_MS)
    batch.erasures.add(broker="b", log_id="l1", physical_offset=[5, 70], requested_ms=BORN_MS + 1)
    batch.erasures.add(broker="other", log_id="l0", physical_offset=[9], requested_ms=BORN_MS + 2)
    snapshot = pb.Batch(version=3, timestamp_ms=BORN_MS)
    snapshot.snapshot.SetInParent()
    snapshot.erasures.add(broker="b", log_id="l1", physical_offset=[5, 70], requested_ms=BORN_MS)
    data, starts = encoded(
        pending(JOURNAL_TOPIC, each.SerializeToString(), TAGS="events") for each in (batch, snapshot)
    )
    rows = StagedLake(tmp_path / "lake").take(data)["erasures"].to_pylist()
    assert [
        (
            row["physical_offset"],
            row["ordinal"],
            row["erased_broker"],
            row["erased_log_id"],
            row["erased_physical_offset"],
        )
        for row in rows
    ] == [(starts[0], 0, "b", "l1", 5), (starts[0], 1, "b", "l1", 70), (starts[0], 2, "other", "l0", 9)]
    assert [row["request_timestamp"].timestamp() * 1000 for row in rows] == [
        BORN_MS + 1,
        BORN_MS + 1,
        BORN_MS + 2,
    ]
