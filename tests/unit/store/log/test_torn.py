"""Every torn write of the last append, and every flipped bit of a side file."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing import logs
from store.errors import StoreDamagedError, StoreError
from store.log.flush import encode_flushed
from store.log.record import Host, PendingRecord, encode_properties, tags_code
from store.message_store import MessageStore
from tests.suite.evidence import sample
from tests.suite.scratch import memory_folder

SEGMENT = 1 << 12
HOST = Host("127.0.0.1", 10911)
LOG = Path("commitlog", f"{0:020d}")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is such a folder: thousands of starts."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        yield Path(name)


open_store = partial(logs.open_store, segment_size=SEGMENT, flush_interval_ms=60_000)


def pending(body: bytes, topic: str = "t") -> PendingRecord:
    properties = encode_properties({"TAGS": "a"})
    return PendingRecord(topic, 0, body, properties, 1, HOST.packed, tags_code=tags_code("a"))


def starts(store: MessageStore) -> list[int]:
    return store.index.record_starts().tolist()


class Torn:
    """A log whose last append, of `bodies`, is torn; `old` is what an earlier log had at the same place."""

    def __init__(self, folder: Path, bodies: list[bytes]) -> None:
        self.folder = folder
        store = open_store(folder)
        self.before = [store.append([pending(b"first")])[0], store.append([pending(b"second")])[0]]
        self.end = store.max_offset
        store.close()
        shutil.rmtree(folder / "lakeindex")
        (folder / "flushed").write_bytes(encode_flushed(self.end))
        self.kept = (folder / LOG).read_bytes()
        shutil.copytree(folder, self.other)
        store = open_store(self.other)
        for n in range(4):  # whole-looking records, the first where the torn one begins
            store.append([pending(bytes([64 + n]) * len(bodies[0]))])
        store.close()
        self.old = (self.other / LOG).read_bytes()
        shutil.rmtree(self.other)
        shutil.copytree(folder, self.other)
        store = open_store(self.other)
        self.placed = store.append([pending(body) for body in bodies])
        self.after = store.max_offset
        store.close()
        self.whole = (self.other / LOG).read_bytes()
        shutil.rmtree(self.other)

    @property
    def other(self) -> Path:
        return self.folder.with_name("other")

    def check(self, log: bytes, survivors: int, what: str) -> None:
        """Starts on `log`: the first `survivors` records of the torn append are there, and nothing else new."""
        (self.folder / LOG).write_bytes(log)
        (self.folder / "abort").write_text("1")  # after a clean stop nothing is torn
        (self.folder / "flushed").write_bytes(encode_flushed(self.end))
        shutil.rmtree(self.folder / "lakeindex", ignore_errors=True)
        expected = [each.physical_offset for each in (*self.before, *self.placed[:survivors])]
        end = self.placed[survivors].physical_offset if survivors < len(self.placed) else self.after
        store = open_store(self.folder)
        assert (starts(store), store.max_offset) == (expected, end), what
        assert not store.recovered.bad, what
        assert bytes(store.record(0, self.before[0].size).body) == b"first"
        (again,) = store.append([pending(b"again")])
        assert (again.physical_offset, again.queue_offset) == (end, len(expected)), what
        store.close()
        shutil.rmtree(self.folder / "lakeindex")
        store = open_store(self.folder)
        assert starts(store) == [*expected, end], f"{what}: an old record came back"
        assert store.recovered.cut_at is None, what
        store.close()


def test_a_record_torn_at_every_byte(tmp_path: Path) -> None:
    torn = Torn(tmp_path / "store", [b"the last one"])
    for length in sample(range(torn.after - torn.end), 3):
        at = torn.end + length
        head = torn.whole[:at]
        zeros = head + torn.kept[at:]
        torn.check(zeros, 0, f"{length} bytes, then zeros")
        mixed = head + torn.old[at:]
        if mixed[: torn.after] not in (torn.old[: torn.after], torn.whole[: torn.after]):
            torn.check(mixed, 0, f"{length} bytes, then an old record's")
    torn.check(torn.whole, 1, "all of it")


def test_a_flipped_bit_in_every_byte_of_the_last_record(tmp_path: Path) -> None:
    torn = Torn(tmp_path / "store", [b"the last one"])
    name = torn.whole.rindex(b"__CRC32#")
    uncovered = {*range(name, name + 9), torn.after - 1}
    """The CRC's own name and separators, which it does not cover: there BODYCRC stands in."""
    for at in sorted({*sample(range(torn.end, torn.after), 7), *uncovered}):
        damaged = bytearray(torn.whole)
        damaged[at] ^= 1 << at % 8
        torn.check(bytes(damaged), int(at in uncovered), f"byte {at - torn.end}")


def test_a_batch_torn_at_every_byte(tmp_path: Path) -> None:
    torn = Torn(tmp_path / "store", [b"one", b"two!", b"three"])
    ends = [each.physical_offset + each.size for each in torn.placed]
    for at in sorted(
        {*sample(range(torn.end, torn.after), 11), *(end + by for end in ends[:-1] for by in (-1, 0))}
    ):
        survivors = sum(end <= at for end in ends)
        torn.check(torn.whole[:at] + torn.kept[at:], survivors, f"{at - torn.end} bytes, then zeros")
        hole = bytearray(torn.whole)  # a page before the end never got to the disk
        hole[torn.end : at + 1] = bytes(at + 1 - torn.end)
        if hole != torn.whole:
            torn.check(bytes(hole), 0, f"{at + 1 - torn.end} zeros, then the rest")


def made(folder: Path) -> tuple[list[int], list[tuple[int, int, int]], int]:
    """Fills a store with two closed segments and more; its record starts, a queue's entries, its end."""
    store = open_store(folder)
    for n in range(12):
        store.append([pending(bytes([n]) * 300, "ab"[n % 2])])
    found = contents(store)
    store.close()
    return found


def contents(store: MessageStore) -> tuple[list[int], list[tuple[int, int, int]], int]:
    entries = []
    for key in sorted(store.index.queues()):
        columns = store.index.entries(*key, 0, 1000)
        entries += list(zip(*(column.tolist() for column in columns), strict=True))
    return starts(store), entries, store.max_offset


def flips(path: Path) -> Iterator[tuple[int, bytes]]:
    data = path.read_bytes()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << (at % 8)
        yield at, bytes(damaged)


def opened(folder: Path) -> tuple[MessageStore | None, str]:
    """The store, or why it does not open."""
    try:
        return open_store(folder), ""
    except StoreError as error:
        return None, str(error)


def side_files(folder: Path) -> list[Path]:
    return [Path("flushed"), Path("lakebroker.json"), *(
        path.relative_to(folder) for path in sorted((folder / "lakeindex").iterdir())
    )]  # fmt: skip


def test_a_flipped_bit_in_every_byte_of_every_side_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tmp_path / "whole"
    expected = made(whole)
    refused = rebuilt = late = 0
    for name in side_files(whole):
        for at, damaged in sample(list(flips(whole / name)), 11):
            folder = tmp_path / "store"
            shutil.copytree(whole, folder)
            (folder / name).write_bytes(damaged)
            store, refusal = opened(folder)
            if store is None:
                refused += 1
                assert str(folder / name) in refusal, f"byte {at} of {name}: {refusal}"
                assert "restore it" in refusal
            else:
                rebuilt += bool(store.recovered.unusable)
                caplog.clear()
                assert contents(store) == expected, f"byte {at} of {name}"
                for told in caplog.messages:
                    late += 1
                    assert told == f"{folder / name} is damaged: it was made anew from the log"
                assert store.log_id in (whole / "lakebroker.json").read_text()
                store.close()
            assert (folder / LOG).read_bytes() == (whole / LOG).read_bytes(), "nothing of the log is lost"
            shutil.rmtree(folder)
    assert refused
    assert rebuilt
    assert late


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"\xff" * 4096, b"\xff" * 5000])
@pytest.mark.parametrize("name", ["checkpoint", "flushed", "abort", "lock"])
def test_rubbish_in_a_file_that_a_start_can_do_without(tmp_path: Path, name: str, content: bytes) -> None:
    expected = made(tmp_path)
    (tmp_path / name).write_bytes(content)
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()


def test_a_short_last_file_is_removed_only_when_it_holds_nothing(tmp_path: Path) -> None:
    expected = made(tmp_path)
    last = max((tmp_path / "commitlog").iterdir())
    unfinished = last.with_name(f"{int(last.name) + SEGMENT:020d}")
    unfinished.write_bytes(bytes(100))
    store = open_store(tmp_path)
    assert contents(store) == expected
    store.close()
    assert not unfinished.exists()
    whole = last.read_bytes()
    last.write_bytes(whole[:-1])
    with pytest.raises(StoreDamagedError, match=rf"{last} has 4095 bytes, expected 4096; restore the file"):
        open_store(tmp_path)
    assert last.read_bytes() == whole[:-1]


def test_a_crash_while_what_is_behind_the_cut_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(bytes(3000))])[0] for _ in range(4)]  # a segment each
    store.close()
    shutil.rmtree(tmp_path / "lakeindex")
    (tmp_path / "flushed").unlink()
    with (tmp_path / LOG).open("r+b") as file:
        file.seek(200)
        file.write(b"\xff")
    for _ in placed:  # each start gets to remove one file
        removed: list[Path] = []
        real = os.unlink

        def unlink(path: Path, removed: list[Path] = removed, real: Any = real, **options: Any) -> None:
            if Path(path).parent.name == "commitlog":
                if removed:
                    raise KeyboardInterrupt
                removed.append(path)
            real(path, **options)

        monkeypatch.setattr(os, "unlink", unlink)
        with contextlib.suppress(KeyboardInterrupt):
            open_store(tmp_path).close()
        monkeypatch.setattr(os, "unlink", real)
    store = open_store(tmp_path)
    assert (starts(store), store.max_offset) == ([], 0)
    assert store.append([pending(b"again")])[0].queue_offset == 0
    store.close()
