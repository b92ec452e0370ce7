"""Files of the queue index that are damaged while the store is in use, or before: what is told is right, and the file made anew."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.errors import StoreDamagedError
from store.index.file_run import FileRun
from store.index.run_file import HEADER, list_runs
from store.index.time_search import BoundaryType
from store.log.record import SYS_PREPARED, Host, PendingRecord, tags_code
from store.message_store import MessageStore
from store.opening import StoreOptions
from tests.suite.evidence import rounds
from tests.support.waiting import wait_until

SEGMENT = 1 << 20
HOST = Host("127.0.0.1", 10911)
KEYS = [(f"t{number}", number) for number in range(3)]
Seen = dict[tuple[str, int], list[tuple[int, int, int]]]


def open_store(root: Path) -> MessageStore:
    return MessageStore.open(
        root,
        StoreOptions(
            broker="b",
            cluster="c",
            store_host=HOST,
            segment_size=SEGMENT,
            flush_interval_ms=5,
            index_run_bytes=100_000,
        ),
    )


def send(store: MessageStore, count: int, keys: list[tuple[str, int]] = KEYS) -> None:
    for number in range(count):
        topic, queue_id = keys[number % len(keys)]
        tag = f"tag{number}"
        properties = b"TAGS\x01" + tag.encode()
        store.append(
            [PendingRecord(topic, queue_id, b"x" * 500, properties, 1, HOST.packed, tags_code=tags_code(tag))]
        )


def seen(store: MessageStore) -> Seen:
    """All entries, and the least offsets."""
    found: Seen = {}
    for key in KEYS:
        first = store.index.min_offset(*key)
        columns = store.index.entries(*key, first, store.index.max_offset(*key) - first)
        found[key] = [(0, first, 0), *zip(*(column.tolist() for column in columns), strict=True)]
    return found


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, Seen]:
    """A closed store with several files of the index, and its entries."""
    store = open_store(tmp_path)
    store.append([PendingRecord("rate_limited_log", 0, b"x", b"", 1, HOST.packed)])
    send(store, 1500)
    store.close()
    store = open_store(tmp_path)
    whole = seen(store)
    store.close()
    assert sum(map(len, whole.values())) == 1500 + len(KEYS)
    return tmp_path, whole


@pytest.fixture
def store(written: tuple[Path, Seen]) -> Iterator[MessageStore]:
    opened = open_store(written[0])
    yield opened
    opened.close()


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def middle(root: Path) -> Path:
    runs = list_runs(root / "lakeindex")
    assert len(runs) > 5
    return runs[len(runs) // 2]


def whole(path: Path) -> bool:
    FileRun(path).check()
    return True


DAMAGE: dict[str, Callable[[Path], None]] = {
    "hash": lambda path: flip(path, HEADER.size),
    "entries of a queue": lambda path: flip(path, HEADER.size + 20),
    "columns": lambda path: flip(path, path.stat().st_size * 2 // 3),
    "tags codes": lambda path: flip(path, path.stat().st_size - 12),
    "checks": lambda path: flip(path, path.stat().st_size - 1),
    "gone": lambda path: path.unlink(),
    "shorter": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("looked", [False, True])
def test_damage_while_the_store_is_in_use_changes_nothing_that_is_told(
    store: MessageStore,
    written: tuple[Path, Seen],
    damage: Callable[[Path], None],
    looked: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if looked:
        assert seen(store) == written[1]
    path = middle(written[0])
    damage(path)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert seen(store) == written[1]
            assert len(store.index.record_starts()) == 1501
    told = [record.getMessage() for record in caplog.records]
    assert len(told) <= 1, "one line a file"
    if told:
        assert "was made anew" in told[0]
        assert whole(path)


def test_each_bit_that_flips_while_the_store_is_in_use(
    store: MessageStore, written: tuple[Path, Seen]
) -> None:
    path, original = middle(written[0]), middle(written[0]).read_bytes()
    run = next(each for each in store.index.runs() if isinstance(each, FileRun) and each.path == path)
    wanted = [run.find(key) for key in KEYS], [run.following(key) for key in KEYS], run.starts().tolist()
    first, remake = run.find(KEYS[0]), run.remake
    assert first is not None
    codes = run.entries(KEYS[0], 0, first[1]).codes.tolist()
    for at in range(0, len(original), rounds(31, 7)):
        run = FileRun(path)  # nothing of it is in memory
        run.remake = remake
        flip(path, at)
        found = [run.find(key) for key in KEYS], [run.following(key) for key in KEYS], run.starts().tolist()
        assert found == wanted, at
        assert run.entries(KEYS[0], 0, first[1]).codes.tolist() == codes, at
        path.write_bytes(original)


@pytest.mark.parametrize("which", ["first", "middle", "newest"])
@pytest.mark.parametrize("what", ["columns", "tags codes", "checks", "hash"])
def test_damage_from_before_the_start_is_mended_by_it_or_by_the_first_look(
    written: tuple[Path, Seen], which: str, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, entries = written
    runs = list_runs(root / "lakeindex")
    path = {"first": runs[0], "middle": middle(root), "newest": runs[-1]}[which]
    DAMAGE[what](path)
    store = open_store(root)
    with caplog.at_level(logging.WARNING):
        assert seen(store) == entries
    assert len(caplog.records) + len(store.recovered.unusable) == 1
    assert (store.index.max_offset("rate_limited_log", 0), store.index.min_offset("rate_limited_log", 0)) == (
        1,
        0,
    )
    store.close()
    assert all(map(whole, list_runs(root / "lakeindex")))


def test_a_record_that_is_damaged_too_keeps_its_place(
    store: MessageStore, written: tuple[Path, Seen]
) -> None:
    path = middle(written[0])
    run = next(each for each in store.index.runs() if isinstance(each, FileRun) and each.path == path)
    base, _ = run.find(KEYS[0]) or (0, 0)
    offset = written[1][KEYS[0]][1 + base][0]
    flip(written[0] / "commitlog" / f"{0:020d}", offset + 4)
    flip(path, path.stat().st_size - 1)
    found = seen(store)
    wanted = {key: list(entries) for key, entries in written[1].items()}
    wanted[KEYS[0]][1 + base] = (0, 0, 0)
    assert found == wanted


def test_a_search_by_time_on_another_thread_mends_too(
    store: MessageStore, written: tuple[Path, Seen]
) -> None:
    search = store.at_time("t1", 1)
    wanted = search(0, BoundaryType.LOWER)
    for path in list_runs(written[0] / "lakeindex")[:-1]:
        flip(path, HEADER.size)
    assert store.at_time("t1", 1)(0, BoundaryType.LOWER) == wanted == search(0, BoundaryType.LOWER)


def test_the_newest_file_that_is_made_anew_knows_the_queues_without_an_entry_in_it(
    written: tuple[Path, Seen],
) -> None:
    root, _ = written
    store = open_store(root)
    store.index.raise_next("raised", 2, 77)
    send(store, 600)
    wait_until(lambda: all(isinstance(each, FileRun) for each in list(store.index.runs())[:-1]))
    runs = [each for each in store.index.runs() if isinstance(each, FileRun)]
    flip(runs[-1].path, HEADER.size)
    assert [run.directory() for run in runs], "made anew"
    reopened = dict(FileRun(runs[-1].path).next_offsets())
    assert (reopened["raised", 2], reopened["rate_limited_log", 0]) == (77, 1)
    store.close()


def test_what_cannot_be_made_anew_is_an_error_each_time_and_one_line(
    store: MessageStore, written: tuple[Path, Seen], caplog: pytest.LogCaptureFixture
) -> None:
    path = middle(written[0])
    (path.parent / f"{path.name}.tmp").mkdir()  # where the new file would be staged
    flip(path, HEADER.size)
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            with pytest.raises(StoreDamagedError, match="restart the broker"):
                seen(store)
    assert len(caplog.records) == 1
    (path.parent / f"{path.name}.tmp").rmdir()
    store.close()
    again = open_store(written[0])
    assert seen(again) == written[1]
    again.close()


def test_a_file_of_records_without_entries(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    half = PendingRecord("t", 0, b"x", b"", 1, HOST.packed, sys_flag=SYS_PREPARED)
    placed = store.append([half, half])
    store.close()
    assert list_runs(tmp_path / "lakeindex")
    store = open_store(tmp_path)
    assert not store.recovered.unusable
    assert store.index.record_starts().tolist() == [each.physical_offset for each in placed]
    store.close()
