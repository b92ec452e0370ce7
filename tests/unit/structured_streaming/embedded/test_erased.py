"""Rows of erased records are not shown, whether they are still in the tables, in the log beyond them, or in an earlier version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lakebroker_testing.logs import LogWriter
from store.log.erased import Offsets, write_erased
from store.log_source import FolderLog
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import UnreachableError
from structured_streaming.maintenance.erasure import purge
from structured_streaming.source.logs import StoreFolder
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.marked import TOPIC, MarkedLake

IDS = f"SELECT message_id FROM messages WHERE topic = '{TOPIC}' ORDER BY message_id"
KEYS = "SELECT count(*) FROM message_index WHERE key LIKE ? || '%'"


@pytest.fixture
def lake(tmp_path: Path) -> MarkedLake:
    made = MarkedLake(tmp_path)
    made.write(2)
    return made


def ids(lake: MarkedLake, **options: str) -> list[str]:
    as_of = options.pop("as_of", "")
    with EmbeddedEngine.open(lake.location, source=options, as_of=as_of) as engine:
        assert engine.query(KEYS, [lake.marker]).read_all().to_pylist() == [
            {"count_star()": 9 * sum(each.startswith(lake.marker) for each in found(engine))}
        ]
        return found(engine)


def found(engine: EmbeddedEngine) -> list[str]:
    return engine.query(IDS).read_all()["message_id"].to_pylist()


def others(count: int) -> list[str]:
    return [f"OTHER{n}" for n in range(count)]


def test_what_the_lake_says_is_erased_is_hidden_before_it_is_removed(lake: MarkedLake) -> None:
    mine = [f"{lake.marker}ID{n}" for n in range(2)]
    with (
        EmbeddedEngine.open(lake.location) as engine,
        EmbeddedEngine.open(lake.location, as_of="1") as then,
    ):
        assert found(engine) == sorted([*mine, *others(2)])
        assert found(then) == sorted([*mine[:1], *others(1)])
        lake.erase()
        assert found(engine) == others(2), "by an engine that was open"
        assert found(then) == others(1), "by one that shows the past"
        assert ids(lake, as_of="1") == others(1)
        rows = engine.query("SELECT count(*) AS n FROM erasures").read_all().to_pylist()
        assert rows == [{"n": 6}], "rows of erasures that no journal has are shown"
        purge(lake.folder, None)
        assert found(engine) == others(2)
    assert ids(lake) == others(2)
    assert ids(lake, as_of="1") == others(1)


def test_what_the_log_says_is_erased_is_hidden_below_and_beyond_the_lake(lake: MarkedLake) -> None:
    lake.append()
    mine = [f"{lake.marker}ID{n}" for n in range(3)]
    source = {"store": str(lake.store)}
    assert ids(lake, **source) == sorted([*mine, *others(3)])
    (log,) = lake.mine().by_log
    every = lake.places_in_log()
    write_erased(lake.store, log[1], np.array(every, np.int64))
    assert ids(lake, **source) == others(3)
    assert ids(lake) == sorted([*mine[:2], *others(2)]), "the tables alone know nothing of it"
    lake.reput()
    assert ids(lake) == sorted([*mine[:2], *others(3)]), "the reput leaves them out"
    lake.erase()
    purge(lake.folder, None)
    assert ids(lake, **source) == ids(lake) == others(3)
    assert {each.partition("/")[0] for each in lake.found()} == {"delivery_events"}
    purge(lake.folder, None, {mine[2]})  # of whose delivery the lake heard, and not of itself
    assert lake.found() == []


def test_a_log_is_asked_for_its_erased_records_once(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append()
    (log,) = lake.mine().by_log
    every = lake.places_in_log()
    write_erased(lake.store, log[1], np.array(every, np.int64))
    asked = list[str]()
    answer = FolderLog.erased

    def counted(source: FolderLog, log_id: str) -> Offsets:
        asked.append(log_id)
        return answer(source, log_id)

    monkeypatch.setattr(FolderLog, "erased", counted)
    with EmbeddedEngine.open(lake.location, source={"store": str(lake.store)}) as engine:
        for _ in range(3):
            assert found(engine) == others(3)
        assert len(asked) == 1
        write_erased(lake.store, log[1], np.array(every[:1], np.int64))
        assert len(found(engine)) > 3, "another list is asked for"
        assert len(asked) == 2


def test_where_queues_end_is_shown(lake: MarkedLake) -> None:
    ends = "SELECT topic, queue_id, max(queue_offset) FROM consume_queue GROUP BY ALL ORDER BY ALL"
    with EmbeddedEngine.open(lake.location) as engine:
        before = engine.query(ends).read_all()
        lake.erase()
        assert engine.query(ends).read_all() == before
        purge(lake.folder, None)
        assert engine.query(ends).read_all() == before


def test_a_log_that_does_not_tell_what_is_erased_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = empty_lake(str(tmp_path / "lake")).path
    for broker in "ab":
        with LogWriter(tmp_path / broker, broker) as writer:
            placed = [writer.record("t", b"", UNIQ_KEY=f"{broker}{n}") for n in range(2)]
            log_id = writer.store.log_id
        write_erased(tmp_path / broker, log_id, np.array([placed[0].physical_offset], np.int64))
    away = set[str]()
    whole = StoreFolder.erased

    def erased(log: StoreFolder, log_id: str) -> Offsets:
        if log.address in away:
            raise UnreachableError(f"{log.address} is away")
        return whole(log, log_id)

    monkeypatch.setattr(StoreFolder, "erased", erased)
    away.add(str(tmp_path / "a"))
    told: list[str] = []
    ids = "SELECT message_id FROM messages ORDER BY ALL"
    with EmbeddedEngine.open(
        str(lake), source={"store": f"{tmp_path / 'a'},{tmp_path / 'b'}"}, tell=told.append
    ) as engine:
        assert engine.query(ids).read_all()["message_id"].to_pylist() == ["b1"]
        assert [line.partition(";")[0] for line in told] == [f"{tmp_path / 'a'} is away"]
        away.clear()
        assert engine.query(ids).read_all()["message_id"].to_pylist() == ["a1", "b1"]
