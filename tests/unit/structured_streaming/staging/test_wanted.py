"""Tables and bodies that are left out: nothing else is different, and what is left out can be seen."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.errors import SourceError
from structured_streaming.reput_options import ReputOptions
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import EVERYTHING, Wanted, wanted
from tests.support.lakes.empty import empty_lake
from tests.support.logs.raw import Raw, log_of

RECORDS = (
    Raw(topic=b"orders", body=b"one", properties=b"KEYS\x01k\x02"),
    Raw(topic=b"audit.a", body=b"two"),
    Raw(store_timestamp=1 << 62),  # damage
    Raw(topic=b"audit.b", body=zlib.compress(b"three"), sys_flag=1),
    Raw(topic=b"orders", body=zlib.compress(b"four"), sys_flag=1),
)
BYTES = len(log_of(*RECORDS))


def taken(lake: Path, start: int, chosen: Wanted) -> dict[str, pa.Table]:
    """The rows of the log, as one that begins at `start`, in each table that has some."""
    empty_lake(str(lake))
    part = LogRange("store:-", "b", "l", start, start + BYTES, start + BYTES)
    data = log_of(*RECORDS, base=start)
    (manifest,) = list(stage(str(lake), part, iter([(start, data)]), chosen))
    files = manifest.to_pylist()
    assert DeltaCommitSink(str(lake), wanted=chosen).commit(files) is not None
    found: dict[str, list[pa.Table]] = {}
    for file in files:
        if file["table"]:
            found.setdefault(file["table"], []).append(pq.read_table(lake / file["table"] / file["path"]))
    return {name: pa.concat_tables(each) for name, each in found.items()}


def progress(lake: Path) -> list[dict[str, Any]]:
    rows = DeltaTable(str(lake / "reput_progress")).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: row["batch"])


def test_tables_that_are_left_out_have_no_rows_and_no_version(tmp_path: Path) -> None:
    whole = taken(tmp_path / "whole", 0, EVERYTHING)
    chosen = Wanted(frozenset(["consume_queue", "message_index"]))
    some = taken(tmp_path / "some", 0, chosen)
    assert some.keys() == {"consume_queue", "message_index", "quarantine"}
    for name in ("consume_queue", "message_index"):
        assert some[name].equals(whole[name])
    (row,) = progress(tmp_path / "some")
    assert {name for name, _ in row["table_versions"]} == some.keys()
    taken(tmp_path / "some", BYTES, EVERYTHING)  # from here on
    assert "messages" in dict(progress(tmp_path / "some")[1]["table_versions"])


def test_bodies_that_are_left_out_are_null(tmp_path: Path) -> None:
    rows = taken(tmp_path / "lake", 0, Wanted(without_bodies=("audit.*", "none")))["messages"]
    found = {(row["topic"], row["body"], row["body_encoding"]) for row in rows.to_pylist()}
    assert found == {
        ("orders", b"one", "identity"),
        ("orders", b"four", "identity"),
        ("audit.a", None, "omitted"),
        ("audit.b", None, "omitted"),
    }
    none = taken(tmp_path / "none", 0, Wanted(without_bodies=("*",)))["messages"]
    assert none["body"].null_count == len(none)
    assert none.drop_columns(["body", "body_encoding"]).equals(
        taken(tmp_path / "all", 0, EVERYTHING)["messages"].drop_columns(["body", "body_encoding"])
    )


def test_options() -> None:
    assert wanted({}) == EVERYTHING
    chosen = ReputOptions("lake", store="s", tables=" messages ,topics", without_bodies="a*,b").wanted
    assert chosen == Wanted(frozenset(["messages", "topics"]), ("a*", "b"))
    assert "quarantine" in chosen
    assert chosen.bodies(pa.array(["a", "ab", "b", "ba"])).to_pylist() == [False, False, False, True]
    with pytest.raises(
        SourceError, match=r"no table 'quarantine' to fill; give of consume_queue, message_index"
    ):
        wanted({"tables": "messages,quarantine"})
