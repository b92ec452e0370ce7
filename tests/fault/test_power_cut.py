"""Power cuts under SYNC_FLUSH: what was answered is there, and nothing is there that was not written.

Each round runs a store with several senders, cuts the power at random instants (also while it opens), starts
on what every cut left, and goes on from one of those.
"""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from store.log.record import SYS_PREPARED, Host, PendingRecord, decode_record
from store.log.retention import Rules
from store.message_store import MessageStore
from store.opening import StoreOptions
from tests.suite.evidence import EVIDENCE
from tests.support.machines.power_cut import Disk
from tests.support.waiting import LIMIT_S, wait_until

ROUNDS = 200 if EVIDENCE else 6
CUTS_A_ROUND = 6
LEAST_ANSWERED = 20
"""Of each round, however slow the machine."""
SEGMENT = 1 << 16
HOST = Host("127.0.0.1", 10911)
BODY = random.Random(1).randbytes(1 << 15)


class Written(NamedTuple):
    """A record as it was appended."""

    topic: str
    queue_id: int
    queue_offset: int
    listed: bool
    body: bytes


class History:
    """What a store took, by physical offset, and what of it was answered; `kept_from` is where retention ended."""

    def __init__(self) -> None:
        self.written: dict[int, Written] = {}
        self.answered: set[int] = set()
        self.kept_from = 0
        self.also: dict[int, Written] = {}
        """Written after a start that ended while the power was cut."""

    def now(self) -> History:
        """What is answered by now; what is being written stays shared, since a cut may find it already."""
        made = History()
        made.answered, made.written = set(self.answered), self.written
        return made


def open_store(folder: Path) -> MessageStore:
    return MessageStore.open(
        folder,
        StoreOptions(
            broker="b",
            cluster="c",
            store_host=HOST,
            commit_log_paths=[folder / "commitlog", folder / "second" / "commitlog"],
            segment_size=SEGMENT,
            flush_interval_ms=60_000,
            index_run_bytes=SEGMENT // 3,
        ),
    )


class Senders:
    """Threads that append in turn and wait for the flush, until `stop`."""

    def __init__(self, store: MessageStore, history: History, seed: int) -> None:
        self._store = store
        self._history = history
        self._tick = threading.Lock()
        self._stopping = False
        self._problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed * 10 + n),), daemon=True)
            for n in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        if self._problems:
            raise self._problems[0]

    def _run(self, rng: random.Random) -> None:
        try:
            while not self._stopping:
                self._send(rng)
        except BaseException as error:
            self._problems.append(error)
            raise

    def _send(self, rng: random.Random) -> None:
        records = [_pending(rng) for _ in range(rng.choice((1, 1, 2, 5)))]
        answered = threading.Event()
        errors: list[BaseException | None] = []

        def answer(error: BaseException | None) -> None:
            errors.append(error)
            answered.set()

        with self._tick:
            foreseen = self._store.max_offset
            placed = self._store.append(records)
            for record, at in zip(records, placed, strict=True):
                self._history.written[at.physical_offset] = Written(
                    record.topic, record.queue_id, at.queue_offset, not record.sys_flag, bytes(record.body)
                )
            end = self._store.max_offset
            if rng.random() < 0.03:
                self._retain()
            assert foreseen <= placed[0].physical_offset
        self._store.wait_flushed(end, answer)
        if rng.random() < 0.8:
            assert answered.wait(LIMIT_S)
            assert errors == [None]
            self._history.answered.update(at.physical_offset for at in placed)

    def _retain(self) -> None:
        keep_from = self._store.flushed_offset - 2 * SEGMENT
        removed = self._store.retain(Rules(reserved_s=-1), 0, keep_from, by_hand=True)
        self._history.kept_from = self._store.min_offset
        removed.dispose()


def _pending(rng: random.Random) -> PendingRecord:
    size = rng.choice((0, 10, 300, 3_000, 12_000))
    start = rng.randrange(len(BODY) - size)
    flag = SYS_PREPARED if rng.random() < 0.05 else 0
    topic, queue = rng.choice("ab"), rng.randrange(2)
    return PendingRecord(topic, queue, BODY[start : start + size], b"", 1, HOST.packed, flag)


def check(folder: Path, history: History) -> None:
    """A start on what a cut left: nothing answered is gone, nothing else is there, and it goes on."""
    store = open_store(folder)
    try:
        assert store.recovered.bad == [], "damage below what was flushed"
        assert [each for each in store.recovered.unusable if "outside of the log" not in each] == []
        found = contents(store)
        lost = {at for at in history.answered if at >= history.kept_from} - found.keys()
        assert not lost, f"{len(lost)} answered records are gone, the first at {min(lost)}"
        strange = sorted(
            at for at, each in found.items() if each not in (history.written.get(at), history.also.get(at))
        )
        assert not strange, f"{len(strange)} records were never written, the first at {strange[0]}"
        queues: dict[tuple[str, int], list[int]] = {}
        for each in found.values():
            if each.listed:
                queues.setdefault((each.topic, each.queue_id), []).append(each.queue_offset)
        for key, offsets in queues.items():
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets))), f"a gap in {key}"
            assert (store.index.min_offset(*key), store.index.max_offset(*key)) == (
                offsets[0],
                offsets[-1] + 1,
            )
            assert (store.index.entries(*key, offsets[0], len(offsets)).sizes > 0).all()
        assert_zero_behind(store)
        (again,) = store.append([PendingRecord("a", 0, b"again", b"", 1, HOST.packed)])
        found[again.physical_offset] = Written("a", 0, again.queue_offset, True, b"again")
    finally:
        store.close()
    store = open_store(folder)
    try:
        assert contents(store) == found, "a second start finds something else"
        assert store.recovered.cut_at is None
    finally:
        store.close()


def contents(store: MessageStore) -> dict[int, Written]:
    """Every record of the log that checks out, by physical offset."""
    found = {}
    for part in store.scan_from(store.min_offset):
        assert part.bad_reason == []
        for at, start, size in zip(
            part.physical_offset.tolist(), part.rows[:, 0].tolist(), part.size.tolist(), strict=True
        ):
            record = decode_record(part.buffer[start : start + size].data, 0, at)
            listed = not record.sys_flag
            found[at] = Written(
                record.topic, record.queue_id, record.queue_offset, listed, bytes(record.body)
            )
    assert sorted(found) == store.index.record_starts().tolist()
    return found


def assert_zero_behind(store: MessageStore) -> None:
    segments = store.segments
    if segments:
        last = segments[-1]
        assert not any(last.view[store.max_offset - last.start :]), "something is left behind the end"


class Round:
    """A store that runs on a copy of `before` while the power is cut; `cuts` are what was left, and what was known."""

    def __init__(self, folder: Path, before: Path, history: History, number: int) -> None:
        self.folder = folder
        self.history = history
        self.cuts: list[tuple[Path, History]] = []
        self._rng = random.Random(number)
        self._rate = self._rng.choice((0.3, 0.05, 0.01))
        self._deciding = threading.Lock()
        self._live = folder / "live"
        shutil.copytree(before, self._live)
        self.disk = Disk(self._live)
        self.disk.on_instant = self._maybe_cut
        self.disk.install()
        try:
            self._run(number)
        finally:
            self.disk.remove()
        shutil.rmtree(self._live)

    def _run(self, number: int) -> None:
        store = open_store(self._live / "store")
        opened = History()  # what a start found is on disk, and what it cut is gone
        opened.written = contents(store)
        opened.answered, opened.kept_from = set(opened.written), store.min_offset
        self.history = opened
        found = len(opened.answered)
        senders = Senders(store, opened, number)
        time.sleep(self._rng.uniform(0.05, 0.3))
        wait_until(lambda: len(opened.answered) >= found + LEAST_ANSWERED)
        with self._deciding:
            self._cut()
        senders.stop()
        store.close()

    def _maybe_cut(self) -> None:
        with self._deciding:
            if len(self.cuts) < CUTS_A_ROUND and self._rng.random() < self._rate:
                self._cut()

    def _cut(self) -> None:
        target = self.folder / f"cut-{len(self.cuts)}"
        known = self.history.now()
        survives = self._rng.choice((0.0, 0.0, 0.2, 0.5, 0.9, self._rng.random()))
        self.disk.cut(target, random.Random(self._rng.random()), survives)
        known.kept_from, known.also = self.history.kept_from, self.history.written
        self.cuts.append((target, known))


@pytest.mark.timeout(7200 if EVIDENCE else 600)
def test_power_cuts_lose_nothing_answered(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    before = tmp_path / "before"
    before.mkdir()
    history = History()
    cuts = answered = syncs = 0
    for number in range(ROUNDS):
        done = Round(tmp_path, before, history, number)
        cuts += len(done.cuts)
        answered += len(done.history.answered)
        syncs += done.disk.syncs
        go_on, history = done.cuts[number % len(done.cuts)]
        shutil.rmtree(before)
        shutil.copytree(go_on, before)
        for target, known in done.cuts:
            check(target / "store", known)
            shutil.rmtree(target)
    record_property("rounds", ROUNDS)
    record_property("cuts", cuts)
    record_property("answered", answered)
    record_property("syncs", syncs)
    assert answered >= LEAST_ANSWERED * ROUNDS
