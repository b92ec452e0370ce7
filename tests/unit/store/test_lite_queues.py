"""Queues of lite topics in the queue index: made by an append, and made again from the log."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store.lite_queues import LiteTopic, lite_topic_of
from store.log.record import SYS_PREPARED, Host, PendingRecord, encode_properties
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.tools.rebuild import rebuild
from store.tools.self_check import self_check

HOST = Host("127.0.0.1", 10911)
A, B = LiteTopic("chat", "a").queue, LiteTopic("chat", "b").queue


def opened(root: Path, index_run_bytes: int = 1 << 20) -> MessageStore:
    options = StoreOptions(
        broker="b", cluster="c", store_host=HOST, segment_size=1 << 20, index_run_bytes=index_run_bytes
    )
    return MessageStore.open(root, options)


def record(queue: str, topic: str = "chat", **properties: str) -> PendingRecord:
    told = {"UNIQ_KEY": "U", "INNER_MULTI_DISPATCH": queue, **properties}
    own = "" if properties else queue
    return PendingRecord(topic, 0, b"x" * 500, encode_properties(told), 1, HOST.packed, lite_queue=own)


def places(store: MessageStore, queue: str) -> list[int]:
    return store.index.entries(queue, 0, 0, store.index.max_offset(queue, 0)).offsets.tolist()


def test_a_record_stands_in_its_parents_queue_and_in_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    placed = store.append([record(A), record(B), record(A)])
    placed += store.append([record(A)])
    where = [each.physical_offset for each in placed]
    assert places(store, "chat") == where
    assert places(store, A) == [where[0], where[2], where[3]]
    assert places(store, B) == [where[1]]
    found = [
        store.record(each.physical_offset, each.size).properties_map()["INNER_MULTI_QUEUE_OFFSET"]
        for each in placed
    ]
    assert found == ["0", "0", "1", "2"]
    store.close()


@pytest.mark.parametrize("lost", [True, False])
def test_its_queue_is_made_again_from_the_log(tmp_path: Path, lost: bool) -> None:
    store = opened(tmp_path, index_run_bytes=4096)
    for _ in range(20):
        store.append([record(A), record(B), record(A)])
    before = places(store, A), places(store, B), places(store, "chat")
    store.close()
    if lost:
        shutil.rmtree(tmp_path / "lakeindex")
    store = opened(tmp_path, index_run_bytes=4096)
    assert (places(store, A), places(store, B), places(store, "chat")) == before
    assert len(before[0]) == 40
    store.append([record(A)])
    assert store.index.max_offset(A, 0) == 41
    store.close()


def test_the_self_check_knows_whose_entries_they_are(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.append([record(A), record(B), record(A)])
    assert self_check(store, 0, 10).run().damage == []
    placed = store.append([record(B)])[0]
    store.index.put(A, 0, 2, placed.physical_offset, placed.size, 0, 0)
    (damage,) = self_check(store, 0, 10).run().damage
    assert "not of that lite topic" in damage
    store.close()


def test_a_real_broker_would_make_the_same_queues_of_the_log(tmp_path: Path) -> None:
    from store.log_source import FolderLog

    store = opened(tmp_path)
    store.append([record(A), record(B), record(A)])
    store.close()
    done = rebuild(
        FolderLog(tmp_path), tmp_path, slots=11, entries=100, enable_multi_dispatch=True, enable_lmq=True
    )
    assert (done.multi_dispatch, done.further_units) == (3, 3)
    assert (tmp_path / "consumequeue" / A / "0").is_dir()


def test_names_of_others_and_copies_make_no_queue(tmp_path: Path) -> None:
    store = opened(tmp_path)
    offset = {"INNER_MULTI_QUEUE_OFFSET": "0"}
    store.append(
        [
            record(A, topic="%DLQ%g", **offset),
            record("%LMQ%plain", **offset),
            record("%LMQ%$chat$a$b", **offset),
            record(A, INNER_MULTI_QUEUE_OFFSET="x"),
            record(f"{A},{B}", INNER_MULTI_QUEUE_OFFSET="0,0"),
        ]
    )
    prepared = record(A, **offset)
    prepared.sys_flag = SYS_PREPARED
    store.append([prepared])
    store.close()
    shutil.rmtree(tmp_path / "lakeindex")
    store = opened(tmp_path)
    assert [key for key in store.index.queues() if key[0].startswith("%LMQ%")] == []
    store.close()


@pytest.mark.parametrize(
    "queue", ["chat", "%LMQ%chat", "%LMQ%$chat", "%LMQ%$chat$", "%LMQ%$$a", "%LMQ%$a$b$c", ""]
)
def test_what_is_no_queue_of_a_lite_topic(queue: str) -> None:
    assert lite_topic_of(queue) is None


def test_a_queue_says_its_lite_topic() -> None:
    assert A == "%LMQ%$chat$a"
    assert lite_topic_of(A) == LiteTopic("chat", "a")
