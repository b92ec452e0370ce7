"""A flush puts data on disk and then calls its listeners; a listener that fails does not stop the others."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lakebroker_testing.logs import open_store
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions, open_parts
from tests.support.waiting import LIMIT_S


def test_a_listener_that_fails_keeps_nobody_from_the_next_flush(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = Host("127.0.0.1", 10911)
    options = StoreOptions(broker="b", cluster="c", segment_size=1 << 20, store_host=host)
    parts = open_parts(tmp_path / "store", options)
    store = MessageStore(parts, options.time_ns)
    told: list[int] = []

    def broken(offset: int) -> None:
        raise ValueError("broken")

    parts.flusher.on_flushed(broken)
    parts.flusher.on_flushed(told.append)
    for _ in range(2):
        store.append([PendingRecord("t", 0, b"x", b"", 1, host.packed)])
        flushed = threading.Event()
        store.wait_flushed(store.max_offset, lambda error, flushed=flushed: flushed.set())  # type: ignore[misc]
        assert flushed.wait(LIMIT_S)
    assert told[-1] == store.max_offset == store.flushed_offset
    assert "broken" in caplog.text
    store.close()


def test_what_is_appended_during_a_flush_is_not_flushed_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path, flush_interval_ms=60_000)
    syncing, go_on, flushed = threading.Event(), threading.Event(), threading.Event()
    sync = os.fdatasync

    def slow(fd: int) -> None:
        syncing.set()
        assert go_on.wait(LIMIT_S)
        sync(fd)

    record = PendingRecord("t", 0, b"x", b"", 1, Host("127.0.0.1", 10911).packed)
    store.append([record])
    end = store.max_offset
    monkeypatch.setattr(os, "fdatasync", slow)
    store.wait_flushed(end, lambda error: flushed.set())
    assert syncing.wait(LIMIT_S)
    store.append([record])
    go_on.set()
    assert flushed.wait(LIMIT_S)
    assert store.flushed_offset == end < store.max_offset
    store.close()
