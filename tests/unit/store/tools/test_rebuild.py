"""`store rebuild` against the files that the real broker wrote, and on our own logs."""

from __future__ import annotations

import json
import shutil
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing import logs
from lakebroker_testing.faults import flip_byte
from lakebroker_testing.prestarted import run
from store.log.record import (
    SYS_PREPARED,
    SYS_ROLLBACK,
    Host,
    PendingRecord,
    encode_properties,
    java_hash,
    tags_code,
)
from store.log_reader import LogReader
from store.log_source import FolderLog
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.tools.rebuild import rebuild
from tests.support.logs.contents import units
from tests.support.waiting import LIMIT_S

DATA = Path(__file__).parents[3] / "data" / "rocketmq-5.5.0-store.tar.gz"
HOST = Host("127.0.0.1", 10911)
SLOTS, ENTRIES, UNITS = 5000, 20_000, 3000
"""Of the broker that wrote the data: maxHashSlotNum, maxIndexNum, mappedFileSizeConsumeQueue / 20."""


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    with tarfile.open(DATA) as archive:
        archive.extractall(tmp_path, filter="data")
    return next(tmp_path.glob("*/commitlog")).parent


def queue_files(root: Path) -> dict[str, bytes]:
    folder = root / "consumequeue"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*/*")}


class IndexFile:
    """A file of `index/`, read as the original's `selectPhyOffset` does."""

    def __init__(self, path: Path, slots: int) -> None:
        self.data = path.read_bytes()
        self.slots = slots
        self.header = struct.unpack_from(">qqqqii", self.data)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        found: tuple[int, int, int, int] = struct.unpack_from(
            ">iqii", self.data, 40 + 4 * self.slots + 20 * number
        )
        return found

    def entries(self) -> list[tuple[int, int, int]]:
        return [self.entry(number)[:3] for number in range(1, self.header[5])]

    def lookup(self, key: str) -> list[int]:
        """Physical offsets, newest first."""
        wanted = abs(java_hash(key))
        (number,) = struct.unpack_from(">i", self.data, 40 + 4 * (wanted % self.slots))
        found = []
        while number:
            key_hash, offset, _, previous = self.entry(number)
            assert previous < number
            if key_hash == wanted:
                found.append(offset)
            number = previous
        return found


def test_the_real_brokers_files_come_out_again(golden: Path) -> None:
    theirs = queue_files(golden)
    (path,) = (golden / "index").iterdir()
    before = IndexFile(path, SLOTS)
    size = len(next(iter(theirs.values()))) // 20
    result = CliRunner().invoke(
        app,
        [
            "store",
            "rebuild",
            str(golden),
            "--units-per-file",
            str(size),
            "--index-slots",
            str(SLOTS),
            "--index-entries",
            str(ENTRIES),
            "--json",
        ],
    )
    assert result.exit_code == 0, result.output
    assert queue_files(golden) == theirs
    (path,) = (golden / "index").iterdir()
    after = IndexFile(path, SLOTS)
    assert set(after.entries()) == set(before.entries())
    assert after.header == before.header
    assert len(after.data) == len(before.data)
    said = json.loads(result.stdout)
    assert said["index_entries"] == len(before.entries())
    assert said["units"] == sum(
        1 for data in theirs.values() for unit in struct.iter_unpack(">qiq", data) if unit[1]
    )
    times = struct.unpack_from(">3q", (golden / "checkpoint").read_bytes())
    assert times == (said["last_ms"],) * 3
    assert sorted(path.name for path in golden.iterdir() if path.name.endswith((".new", ".old"))) == []


def written(folder: Path, count: int) -> tuple[LogReader, list[dict[str, Any]]]:
    store = MessageStore.open(
        folder, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=1 << 20)
    )
    rows = []
    rng = np.random.default_rng(3)
    for number in range(count):
        flag = [0, 0, 0, 0, SYS_PREPARED, SYS_ROLLBACK][rng.integers(6)]
        properties = {"UNIQ_KEY": f"U{number}", "KEYS": f"k{number % 50} ä{number}"}
        if number % 3:
            properties["TAGS"] = f"tag{number % 4}"
        topic, queue_id = ("orders", "thé")[number % 2], int(rng.integers(3))
        record = PendingRecord(
            topic,
            queue_id,
            b"x" * int(rng.integers(3000)),
            encode_properties(properties),
            1000,
            HOST.packed,
            sys_flag=flag,
            tags_code=tags_code(properties.get("TAGS")),
        )
        placed = store.append([record])[0]
        rows.append({"topic": topic, "queue": queue_id, "flag": flag, "placed": placed, **properties})
    store.close()
    return LogReader(folder), rows


def test_queues_over_several_files_and_indexes_over_several(tmp_path: Path) -> None:
    reader, rows = written(tmp_path, 2000)
    done = rebuild(FolderLog(tmp_path), tmp_path, units_per_file=100, slots=37, entries=1000)
    assert done.index_files == -(-done.index_entries // 999)
    for topic in ("orders", "thé"):
        for queue in range(3):
            wanted = {
                row["placed"].queue_offset: (
                    row["placed"].physical_offset,
                    row["placed"].size,
                    tags_code(row.get("TAGS")),
                )
                for row in rows
                if (row["topic"], row["queue"]) == (topic, queue) and not row["flag"]
            }
            assert units(tmp_path, topic, queue) == wanted
            names = [path.name for path in (tmp_path / "consumequeue" / topic / str(queue)).iterdir()]
            assert len(names) == max(wanted) // 100 + 1
    files = [IndexFile(path, 37) for path in sorted((tmp_path / "index").iterdir())]
    for row in rows[:200]:
        found = [
            offset for each in reversed(files) for offset in each.lookup(f"{row['topic']}#{row['UNIQ_KEY']}")
        ]
        assert found == ([] if row["flag"] == SYS_ROLLBACK else [row["placed"].physical_offset])
    for key in ("k7", "ä13"):
        wanted_offsets = [
            row["placed"].physical_offset
            for row in rows
            if key in row["KEYS"].split() and row["topic"] == "thé" and row["flag"] != SYS_ROLLBACK
        ]
        found = [offset for each in reversed(files) for offset in each.lookup(f"thé#{key}")]
        assert found == wanted_offsets[::-1]
    reader.close()


def test_the_front_that_is_gone_is_blank_and_a_second_rebuild_says_the_same(tmp_path: Path) -> None:
    reader, rows = written(tmp_path, 3000)
    reader.close()
    gone = min(int(path.name) for path in (tmp_path / "commitlog").iterdir()) + (1 << 20)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    shutil.rmtree(tmp_path / "lakeindex")
    reader = LogReader(tmp_path)
    rebuild(FolderLog(tmp_path), tmp_path, units_per_file=100, slots=11, entries=100_000)
    first = min(
        row["placed"].queue_offset
        for row in rows
        if (row["topic"], row["queue"], row["flag"]) == ("orders", 0, 0)
        and row["placed"].physical_offset >= gone
    )
    found = units(tmp_path, "orders", 0)
    assert first % 100
    blank = range(first - first % 100, first)
    assert {offset: found.pop(offset) for offset in blank} == dict.fromkeys(blank, (0, 0x7FFFFFFF, 0))
    assert min(found) == first
    again = queue_files(tmp_path)
    rebuild(FolderLog(tmp_path), tmp_path, units_per_file=100, slots=11, entries=100_000)
    assert queue_files(tmp_path) == again
    reader.close()


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    store = MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=1 << 20)
    )

    done = run("store", "rebuild", str(tmp_path), timeout=LIMIT_S)
    assert done.returncode == 1
    assert "Lock failed, MQ already started" in done.stderr
    assert not (tmp_path / "consumequeue").exists()
    store.close()


def test_damage_in_the_middle_is_said(tmp_path: Path) -> None:
    folder = logs.written(tmp_path, "b", 600)
    whole = CliRunner().invoke(app, ["store", "rebuild", str(folder), "--json"])
    assert (whole.exit_code, json.loads(whole.stdout)["bad"], whole.stderr.strip()) == (0, [], "")
    flip_byte(folder / "commitlog" / f"{0:020d}", 300_000)
    found = CliRunner().invoke(app, ["store", "rebuild", str(folder), "--json"])
    assert found.exit_code == 0, found.output
    (bad,) = json.loads(found.stdout)["bad"]
    assert bad["offset"] <= 300_000 < bad["offset"] + 2000
    assert f"damage in 1 place of the log was passed over, the first at {bad['offset']}" in found.stderr
    assert f"run lakebroker store verify {folder}" in found.stderr
