"""By key or id all records of a message are found: its copies too, whichever table has them, and no others."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broker_gateway.messaging.erasure_search import ErasureSearch as InLog
from lakebroker_testing.logs import HOST, LogWriter
from store.log.record import SYS_ROLLBACK, decode_record, offset_msg_id, place_of
from store.log_source import FolderLog
from structured_streaming.commit.upkeep_log import read_upkeep
from structured_streaming.maintenance import erasure_search, left_out
from structured_streaming.maintenance.erasure_search import ErasureSearch, Found
from structured_streaming.maintenance.reading import Part
from structured_streaming.staging.wanted import EVERYTHING, Wanted
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import MESSAGE_INDEX
from tests.support.lakes.maintained import reput
from tests.support.lakes.marked import TOPIC, MarkedLake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> MarkedLake:
    made = MarkedLake(tmp_path_factory.mktemp("marked"))
    made.write(3)
    return made


def found(lake: MarkedLake, topic: str, keys: set[str], ids: set[str]) -> Found:
    search = ErasureSearch(lake.folder)
    search.add(topic, keys, ids)
    return search.found


def places(found: Found) -> set[tuple[object, ...]]:
    return {tuple(row.values()) for row in found.records.table().to_pylist()}


def test_a_key_finds_messages_of_its_topic_and_their_copies(lake: MarkedLake) -> None:
    by_key = found(lake, TOPIC, {lake.key}, set())
    assert places(by_key) == {tuple(row.values()) for row in lake.mine().table().to_pylist()}
    assert by_key.topics == {TOPIC: 3, "%RETRY%g": 3, "rmq_sys_wheel_timer": 3}
    assert by_key.ids == {f"{lake.marker}ID{n}" for n in range(3)}
    assert places(found(lake, "topic-1", {lake.key}, set())) == set()
    one = found(lake, TOPIC, {f"{lake.marker}1"}, set())
    assert one.topics == {TOPIC: 1, "%RETRY%g": 1, "rmq_sys_wheel_timer": 1}


def test_a_part_of_a_key_or_an_id_is_none(lake: MarkedLake) -> None:
    assert not len(found(lake, TOPIC, {lake.marker}, {f"{lake.marker}ID"}).records)
    assert not len(found(lake, TOPIC, {f"{lake.marker}ID1"}, set()).records)


def test_an_id_finds_a_message_in_its_topic_or_in_any(lake: MarkedLake) -> None:
    with_topic = found(lake, TOPIC, set(), {f"{lake.marker}ID2"})
    assert with_topic.topics == {TOPIC: 1, "%RETRY%g": 1, "rmq_sys_wheel_timer": 1}
    assert places(found(lake, "", set(), {f"{lake.marker}ID2"})) == places(with_topic)
    assert not len(found(lake, "topic-0", set(), {f"{lake.marker}ID2"}).records)


@pytest.mark.parametrize("left_out", ["messages", "message_index"])
def test_either_table_may_lack_them(tmp_path: Path, left_out: str) -> None:
    made = MarkedLake(tmp_path)
    made.append()
    tables = frozenset({"consume_queue", "message_index", "messages"} - {left_out})
    reput(made.store, made.location, wanted=Wanted(tables))
    by_key = found(made, TOPIC, {made.key}, set())
    assert by_key.topics == {TOPIC: 1, "%RETRY%g": 1, "rmq_sys_wheel_timer": 1}


def test_batches_that_a_search_looked_at_are_not_looked_at_again(
    lake: MarkedLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether `message_index` was left out of one."""
    made, looked = lake.copied(tmp_path / "copy"), list[object]()
    looks, now, seconds = left_out.batch_in, datetime.now(UTC), itertools.count()

    def lacking(*given: Any) -> int | None:
        looked.append(given)
        return looks(*given)

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return now + timedelta(days=9, seconds=next(seconds))

    def search(*, notes: bool = True) -> int:
        looked.clear()
        one = ErasureSearch(made.folder)
        one.add("", (), {"nobody's"})
        if notes:
            one.note()
        return len(looked)

    monkeypatch.setattr(left_out, "batch_in", lacking)
    assert search(notes=False) == search() == 3
    assert search() == 3, "they were committed lately"
    monkeypatch.setattr(erasure_search, "datetime", Later)
    assert (search(), search()) == (3, 0)
    made.write_others()
    assert search() == 0
    reput_without = Wanted(EVERYTHING.tables - {"message_index"})
    made.append()
    reput(made.store, made.location, wanted=reput_without)
    monkeypatch.setattr(left_out, "LATE", timedelta(days=10))
    assert search() > 0
    assert MESSAGE_INDEX.name in read_upkeep(made.folder).indexed_batches
    assert search() == 0
    assert found(made, TOPIC, {made.key}, set()).topics[TOPIC] == 4


def in_log(store: Path, topic: str, keys: set[str], ids: set[str]) -> dict[int, str]:
    """Where a broker's search finds records, and their topics."""
    search = InLog(topic, keys, ids)
    log = FolderLog(store)
    state = log.describe()
    [(_, whole)] = log.read(state.log_id, state.start, state.end)
    for _, at in filter(None, map(place_of, ids)):
        search.add_of_topic(decode_record(memoryview(whole), at - state.start, at))
    for start, data in log.read(state.log_id, state.start, state.end):
        assert search.look(start, memoryview(data), state.segment_size) is None
    log.close()
    return {each.physical_offset: each.topic for each in search.found.values()}


def test_brokers_and_the_lake_find_the_same_in_one_log(tmp_path: Path) -> None:
    """Copies of every kind, with and without keys and ids of their own, of messages of two topics; and what only looks like one."""
    dice = random.Random(16)
    store, lake = tmp_path / "store", str(tmp_path / "lake")
    topics = ["t", "u", "%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"]
    topics += ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_x"]
    with LogWriter(store) as writer:
        ids, offsets = ["ID", "id", "ID0"], []
        for number in range(600):
            properties = {"name": str(number)}
            if dice.random() < 0.5:
                properties["UNIQ_KEY"] = dice.choice([f"ID{number % 40}", f"own{number}"])
            if dice.random() < 0.4:
                properties["KEYS"] = dice.choice(["k", "k other", "other", "kk", f"k {dice.choice(ids)}"])
            for name in ("ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"):
                if dice.random() < 0.2:
                    properties[name] = dice.choice(ids)
            for name in ("REAL_TOPIC", "RETRY_TOPIC", "DLQ_ORIGIN_TOPIC"):
                if dice.random() < 0.1:
                    properties[name] = dice.choice(["t", "u"])
            if dice.random() < 0.2:
                properties["LB_ORIGIN"] = dice.choice(
                    ["1:7:0:1:gt", "1:7:0:1:gu", "1:7:0:9:gt", "t", "0:0:1:0:t"]
                )
            ended = SYS_ROLLBACK if dice.random() < 0.1 else 0
            appended = writer.record(dice.choice(topics), b"%d" % number, 0, ended, **properties)
            offsets.append(appended.physical_offset)
            ids.append(properties.get("UNIQ_KEY") or offset_msg_id(HOST.packed, appended.physical_offset))
    reput(store, lake)
    for topic, keys, asked in (
        ("t", {"k"}, set()),
        ("u", {"other", "k"}, set()),
        ("t", set(), set(ids[100:110])),
        ("t", {"kk"}, set(ids[3:6])),
        ("", set(), set(ids[200:300])),
        ("t", set(), {offset_msg_id(HOST.packed, each) for each in offsets[300:360]}),
        ("", set(), {offset_msg_id(HOST.packed, each).lower() for each in offsets[400:402]}),
    ):
        search = ErasureSearch(lake_folder(lake))
        search.add(topic, keys, asked)
        expected = in_log(store, topic, keys, asked)
        found = search.found
        assert {row["physical_offset"] for row in found.records.table().to_pylist()} == expected.keys()
        assert dict(found.topics) == dict(Counter(expected.values()))
        assert len(found.topics) > 2


def test_of_messages_without_the_key_or_id_next_to_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = MarkedLake(tmp_path)
    lake.write()
    for _ in range(3):
        lake.write_others()
    real, whole = Part.read, set[str]()

    def read(part: Part, columns: Sequence[str] | None = None) -> pa.Table:
        if columns is None or not {"key", "message_id"}.isdisjoint(columns):
            whole.add(part.file.name)
        return real(part, columns)

    monkeypatch.setattr(Part, "read", read)
    search = ErasureSearch(lake.folder)
    search.add(TOPIC, [lake.key], [])
    assert search.found.topics == {TOPIC: 1, "%RETRY%g": 1, "rmq_sys_wheel_timer": 1}
    files = {
        name: {path.name for path in (lake.lake / name).glob("*.parquet")}
        for name in ("messages", "message_index")
    }
    for name, there in files.items():
        assert len(whole & there) < len(there) / 2, name


@pytest.mark.parametrize("left_out", ["", "messages", "message_index"])
def test_traces_of_them_are_found_by_the_ids_among_their_keys(tmp_path: Path, left_out: str) -> None:
    """As RocketMQ's Java client sends them: ids and keys of what it traces, of several messages at once."""
    made = MarkedLake(tmp_path)
    made.append()
    mine = f"{made.marker}ID0"
    with LogWriter(made.store) as writer:
        writer.number = 500
        writer.record("RMQ_SYS_TRACE_TOPIC", b"Pub", 0, KEYS=f"OTHER0 {mine} {made.key}", UNIQ_KEY="T1")
        writer.record("rmq_sys_TRACE_DATA_x", b"SubAfter", 0, KEYS=mine, UNIQ_KEY="T2")
        writer.record("RMQ_SYS_TRACE_TOPIC", b"Pub", 0, KEYS=f"OTHER0 {made.key}", UNIQ_KEY="T3")
        writer.record("topic-0", b"a reference", 0, KEYS=mine, UNIQ_KEY="T4")
    tables = {"consume_queue", "message_index", "messages"} - {left_out}
    reput(made.store, made.location, wanted=Wanted(frozenset(tables)))
    expected = {TOPIC: 1, "%RETRY%g": 1, "rmq_sys_wheel_timer": 1}
    traces = {"RMQ_SYS_TRACE_TOPIC": 1, "rmq_sys_TRACE_DATA_x": 1}
    assert found(made, TOPIC, {made.key}, set()).topics == expected | traces
    assert found(made, "", set(), {mine}).topics == expected | traces
