"""A reput that dies at any of its calls on the lake's files, without Spark: the next one leaves every table exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakebroker_testing.logs import LogWriter
from structured_streaming.commit.typed_tables import declare
from structured_streaming.maintenance.check import check_lake
from structured_streaming.storage.local import LocalFolder
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.suite.evidence import LONG, rounds
from tests.support.lakes.checks import assert_exact, assert_keys_below_progress, expected_keys, rows
from tests.support.lakes.dying_calls import DyingCalls
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.streamed import stream

SCHEMA = {"required": ["id"], "properties": {"id": {"type": "integer"}}}
ORDERS = Declaration("orders", "typed_orders", JSON, (Schema(1, json.dumps(SCHEMA)),))
BATCHES = rounds(5, 12)
STRIDE = 7
BATCH_BYTES = 4000
CALLS = ("put_if_absent", "open_new", "make_durable", "replace", "create", "remove")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of so many batches, in each of which every table has rows."""
    folder = tmp_path_factory.mktemp("crashes") / "store"
    with LogWriter(folder) as writer:
        for number in range(BATCHES):
            begin = writer.store.max_offset
            writer.record("orders", b'{"id":%d}' % number, UNIQ_KEY=f"O{number}")
            writer.record("orders", b"bad", UNIQ_KEY=f"B{number}")
            writer.messages(1)
            writer.journal_record(number)
            writer.raw(b"no record at all".ljust(BATCH_BYTES - (writer.store.max_offset - begin), b"?"))
    return folder


@pytest.mark.parametrize("when", [pytest.param("before", marks=LONG), "after"])
def test_killed_at_any_call_of_a_commit_the_next_run_leaves_every_table_exact(
    store: Path, tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run goes on where the one before it died, and dies some calls later: the last ones behind a whole batch."""
    monkeypatch.setattr("structured_streaming.commit.table_log.CHECKPOINT_COMMITS", 3)
    lake = empty_lake(str(tmp_path / "lake")).path
    declare(LocalFolder(lake), ORDERS)
    dying = DyingCalls(monkeypatch, when, CALLS)
    expected, reported, unfinished, deaths = expected_keys(store), 0, 0, 0

    looked_at = set[Path]()

    def believe(end: int) -> None:
        nonlocal reported
        reported = max(reported, end)

    def run() -> None:
        stream(store, lake, BATCH_BYTES, (ORDERS,), lambda report: believe(*report.ends.values()))

    while dying.kill(1 + STRIDE * deaths, run):
        deaths += 1
        if (logs := set(lake.glob("*/_delta_log/*"))) != looked_at:
            looked_at = logs
            held = assert_keys_below_progress(lake, expected)
        assert max(held.ends.values(), default=0) >= reported, "the lake fell behind what was reported"
        unfinished += held.beyond > 0
    assert deaths > BATCHES
    assert unfinished > deaths // 10
    assert_exact(lake, store)
    typed = rows(lake, ORDERS.table).to_pylist()
    assert sorted(row["id"] for row in typed if row["reason"] is None) == list(range(BATCHES))
    assert len(typed) == 2 * BATCHES
    assert [problem for found in check_lake(str(lake), [str(store)]) for problem in found.problems] == []
