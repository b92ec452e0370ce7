"""How far the lake is behind the log, read from a real Delta table."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from structlog.testing import capture_logs

from broker_gateway.lake.reader import PROGRESS_TABLE, Lake
from broker_gateway.observability.dispatch_lag import DispatchLag, room_left
from broker_gateway.runtime.clock import now_ms
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions

HOST = Host("127.0.0.1", 10911)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    opened = MessageStore.open(
        tmp_path / "store",
        StoreOptions(broker="broker-a", cluster="c", store_host=HOST, segment_size=1 << 20),
    )
    yield opened
    opened.close()


def append(store: MessageStore, count: int) -> None:
    store.append([PendingRecord("t", 0, b"x" * 1000, b"", now_ms(), HOST.packed)] * count)


def commit_progress(lake: Path, store: MessageStore, offset: int) -> None:
    """As the reput's last commit of a batch does."""
    write_deltalake(
        str(lake / PROGRESS_TABLE),
        pa.table({"offset": [offset]}),
        mode="append",
        commit_properties=CommitProperties(
            app_transactions=[Transaction(f"{store.broker}/{store.log_id}", offset)]
        ),
    )


def test_it_is_what_the_lake_does_not_have(tmp_path: Path, store: MessageStore) -> None:
    lake = tmp_path / "lake"
    lag = DispatchLag(store, Lake(str(lake)), lambda: 1.0)
    assert lag.behind_bytes is None
    append(store, 10)
    asyncio.run(lag.measure())
    assert lag.behind_bytes == store.max_offset > 10_000
    assert lag.hours_left is not None
    assert lag.hours_left > 0
    commit_progress(lake, store, 5000)
    asyncio.run(lag.measure())
    assert lag.behind_bytes == store.max_offset - 5000
    assert lag.hours_left is None, "nothing was appended since the last look"
    commit_progress(lake, store, store.max_offset)
    asyncio.run(lag.measure())
    assert lag.behind_bytes == 0
    with capture_logs() as logs:
        asyncio.run(lag.measure())
        commit_progress(lake, store, store.max_offset + 1)
        asyncio.run(lag.measure())
    assert [each["event"] for each in logs if each["log_level"] == "error"] == [
        "the lake is ahead of the log; restart the broker: it begins a new log (lakeNewLogWhenAhead)"
    ]


def test_it_is_told_in_records_and_in_seconds_too(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    lag = DispatchLag(store, Lake(str(lake)), lambda: 1.0)
    commit_progress(lake, store, 0)
    asyncio.run(lag.measure())
    assert (lag.behind_bytes, lag.behind_records, lag.behind_s) == (0, 0, 0.0), "nothing is stored"
    append(store, 10)
    first = store.first_stored_ms(0)
    assert first is not None
    until_later(first)
    append(store, 5)
    starts = store.index.record_starts().tolist()
    later = store.first_stored_ms(starts[10])
    assert later is not None
    assert later > first
    monkeypatch.setattr("broker_gateway.observability.dispatch_lag.now_ms", lambda: later + 60_000)
    for held, oldest in ((0, first), (3, first), (10, later), (14, later)):
        commit_progress(lake, store, starts[held])
        asyncio.run(lag.measure())
        assert lag.behind_records == 15 - held
        assert lag.behind_s == (later + 60_000 - oldest) / 1000
    commit_progress(lake, store, store.max_offset)
    asyncio.run(lag.measure())
    assert (lag.behind_bytes, lag.behind_records, lag.behind_s) == (0, 0, 0.0)


def until_later(than_ms: int) -> None:
    """Waits for the clock to go on."""
    while now_ms() <= than_ms:
        time.sleep(0.001)


def test_of_a_new_log_it_is_what_comes_behind_its_beginning(tmp_path: Path, store: MessageStore) -> None:
    lake = tmp_path / "lake"
    lag = DispatchLag(store, Lake(str(lake)), lambda: 1.0)
    append(store, 10)
    commit_progress(lake, store, store.max_offset + 1)
    store.begin_log()
    append(store, 1)
    asyncio.run(lag.measure())
    assert lag.behind_bytes == store.max_offset - store.own_from < 5_000
    assert lag.behind_records == 1


def test_a_lake_that_cannot_be_read_is_unknown_and_known_again(tmp_path: Path, store: MessageStore) -> None:
    lake = tmp_path / "lake"
    lag = DispatchLag(store, Lake(str(lake)), lambda: 1.0)
    append(store, 1)
    commit_progress(lake, store, 0)
    commit = next((lake / PROGRESS_TABLE / "_delta_log").glob("*.json"))
    whole = commit.read_bytes()
    commit.write_bytes(b"{no json")
    asyncio.run(lag.measure())
    assert lag.behind_bytes is None
    commit.write_bytes(whole)
    asyncio.run(lag.measure())
    assert lag.behind_bytes == store.max_offset


def test_without_a_lake_only_the_disk_is_told(store: MessageStore) -> None:
    lag = DispatchLag(store, None, lambda: 1.0)
    append(store, 1)
    asyncio.run(lag.measure())
    assert lag.behind_bytes is None
    assert lag.hours_left is not None


def test_a_disk_counts_once_and_has_no_room_above_the_limit(tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    whole = usage.used + usage.free
    assert room_left([tmp_path, tmp_path], 1.0) == pytest.approx(whole - usage.used, rel=0.05)
    assert room_left([tmp_path], 0.0) == 0
