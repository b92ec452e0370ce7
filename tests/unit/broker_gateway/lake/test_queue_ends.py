"""Where a broker's queues end in a lake."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker_gateway.lake.queue_ends import queue_ends
from broker_gateway.lake.reader import Lake, LakeReadStoppedError, LakeUnreachableError
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming.staging.wanted import Wanted
from tests.support.lakes.staged import StagedLake
from tests.support.logs.raw import JOURNAL, NOW_MS, Raw, log_of

JOURNALED = pb.Batch(version=1, timestamp_ms=NOW_MS).SerializeToString()


def queue(topic: str, queue_id: int, *offsets: int) -> list[Raw]:
    return [Raw(topic.encode(), JOURNALED, queue_id=queue_id, queue_offset=offset) for offset in offsets]


def test_a_place_without_a_lake_has_none(tmp_path: Path) -> None:
    assert queue_ends(Lake(str(tmp_path)), "b") == queue_ends(Lake(str(tmp_path / "absent")), "b") == {}
    assert queue_ends(Lake(str(StagedLake(tmp_path / "lake").folder)), "b") == {}


def test_the_highest_of_every_log_counts_and_of_that_broker_alone(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 7, 8, 9), *queue("t", 1, 4), *queue(JOURNAL, 0, 30)))
    lake.take(log_of(*queue("t", 0, 3), *queue("u", 0, 1_000_000_000_000)))
    lake.take(log_of(*queue("t", 0, 50), *queue("v", 0, 1)), broker="a")
    lake.take(log_of(*queue("t", 1, 60)), broker="c")
    assert queue_ends(Lake(str(lake.folder)), "b") == {
        ("t", 0): 10,
        ("t", 1): 5,
        (JOURNAL, 0): 31,
        ("u", 0): 1_000_000_000_001,
    }
    assert queue_ends(Lake(str(lake.folder)), "a") == {("t", 0): 51, ("v", 0): 2}
    assert queue_ends(Lake(str(lake.folder)), "bb") == {}


def test_where_consume_queue_was_left_out_the_messages_tell(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 1)))
    lake.take(log_of(*queue("t", 0, 5), *queue("u", 3, 6)), wanted=Wanted(frozenset({"messages"})))
    assert queue_ends(Lake(str(lake.folder)), "b") == {("t", 0): 6, ("u", 3): 7}


def test_a_lake_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 1)))
    (data,) = lake.files["consume_queue"]
    data.unlink()
    with pytest.raises(LakeUnreachableError, match=r"lake.*consume.*"):
        queue_ends(Lake(str(lake.folder)), "b")
    shutil.rmtree(lake.folder / "consume_queue" / "_delta_log")
    with pytest.raises(LakeUnreachableError, match="consume_queue"):
        queue_ends(Lake(str(lake.folder)), "b")


def test_a_reading_ends_when_the_broker_is_to_stop(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 3)))
    with pytest.raises(LakeReadStoppedError):
        queue_ends(Lake(str(lake.folder), lambda: True), "b")
