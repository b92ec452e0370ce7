"""The store alone: appending, scanning, flushing, starting; one line of JSON a measurement.

`python -m benchmarks.store [--records N]`. Each figure stands beside what the machine can do at most: copying the
same bytes, their CRC, bare fdatasyncs.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from zlib_ng import zlib_ng

from store.columns import BODY_START, PROPERTIES_START, PendingColumns
from store.log.record import Host, PendingRecord, encode_properties
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.scan import scan

HOST = Host("127.0.0.1", 10911)
BODY = os.urandom(1024)
PROPERTIES = encode_properties({"UNIQ_KEY": "01" + "A" * 30, "KEYS": "order-17", "TAGS": "a"})
SEGMENT = 256 << 20


def say(**figures: Any) -> None:
    sys.stdout.write(
        json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in figures.items()}) + "\n"
    )
    sys.stdout.flush()


def open_store(folder: Path, **options: Any) -> MessageStore:
    options = {"segment_size": SEGMENT} | options
    return MessageStore.open(
        folder, StoreOptions(broker="bench", cluster="bench", store_host=HOST, **options)
    )


def pending(number: int) -> PendingRecord:
    return PendingRecord("bench", number % 8, BODY, PROPERTIES, 1_700_000_000_000, HOST.packed, tags_code=97)


def pending_columns(queue_id: int, count: int) -> PendingColumns:
    """The same records for one queue, as a send brings them."""
    row = [0, len(BODY), 0, len(PROPERTIES), 1_700_000_000_000, 0, 97, -1]
    rows = np.array([row] * count, dtype=np.int64)
    rows[:, BODY_START] = np.arange(count) * len(BODY)
    rows[:, PROPERTIES_START] = np.arange(count) * len(PROPERTIES)
    bodies, properties = BODY * count, PROPERTIES * count
    size = len(bodies) + len(properties)
    return PendingColumns("bench", queue_id, HOST.packed, bodies, properties, rows, size, count)


def append(folder: Path, records: int, batch: int, *, columns: bool) -> None:
    """Records a CPU-second of the appending thread, and of one that only copies the same bytes."""
    store = open_store(folder)
    store.load_compiled()
    put: Callable[[Any], object]
    ready: list[Any]
    if columns:
        ready = [[pending_columns(each % 8, batch)] for each in range(64)]
        put = store.append_columns
    else:
        ready = [[pending(each) for each in range(batch)] for _ in range(64)]
        put = store.append
    for some in ready:
        put(some)
    began, at = time.thread_time(), store.max_offset
    for number in range(records // batch):
        put(ready[number % 64])
    cpu, size = time.thread_time() - began, (store.max_offset - at) / (records // batch * batch)
    store.close()
    target = mmap.mmap(-1, SEGMENT)
    view, data = memoryview(target), bytes(int(size))
    began, position = time.thread_time(), 0
    for _ in range(records):
        view[position : position + len(data)] = data
        position = (position + len(data)) % (SEGMENT - 4096)
    copied = time.thread_time() - began
    view.release()
    target.close()
    say(
        benchmark="append as columns" if columns else "append",
        batch=batch,
        bytes=int(size),
        records_per_cpu_s=int(records / cpu),
        memcpy_records_per_cpu_s=int(records / copied),
    )


def scan_again(folder: Path) -> None:
    """Bytes a CPU-second of the scan with CRCs, and of the CRC alone."""
    store = open_store(folder)
    chunks = list(store.read_chunks(store.min_offset, store.max_offset, 64 << 20))
    scan(chunks[0][1][:4096], chunks[0][0], mode="tail")  # compiled now
    for verify in (True, False):
        began, total = time.thread_time(), 0
        for offset, data, _ in chunks:
            total += len(data)
            scan(data, offset, verify_crc=verify)
        say(benchmark="scan", crc=verify, gb_per_cpu_s=total / (time.thread_time() - began) / 1e9)
    began = time.thread_time()
    for _, data, _ in chunks:
        zlib_ng.crc32(data)
    say(benchmark="crc alone", gb_per_cpu_s=total / (time.thread_time() - began) / 1e9)
    chunks.clear()
    store.close()


def sync_flush(folder: Path, seconds: float, waiters: int) -> None:
    """Appends a second with so many waiting for the disk, and bare fdatasyncs of 4 KiB."""
    store = open_store(folder)
    lock, until, done = threading.Lock(), time.monotonic() + seconds, 0

    def work() -> None:
        nonlocal done
        while time.monotonic() < until:
            flushed = threading.Event()
            with lock:
                placed = store.append([pending(0)])[0]
            store.wait_flushed(placed.physical_offset + placed.size, partial(_wake, flushed))
            flushed.wait()
            with lock:
                done += 1

    threads = [threading.Thread(target=work) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    fd = os.open(folder / "bare", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 64 << 20)
    os.fsync(fd)
    until, bare = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        os.pwrite(fd, BODY * 4, bare % 16_000 * 4096)
        os.fdatasync(fd)
        bare += 1
    os.close(fd)
    say(
        benchmark="sync flush",
        waiters=waiters,
        appends_per_s=int(done / seconds),
        fdatasyncs_per_s=int(bare / seconds),
    )


AHEAD: dict[str, dict[str, Any]] = {
    "nothing": {"prefault_bytes": 0},
    "2 MiB": {"prefault_bytes": 2 << 20},
    "8 MiB": {"prefault_bytes": 8 << 20},
}
"""Steps in which pages are brought in ahead of appends (`store/log/page_cache.py`)."""


def roll(folder: Path, rounds: int = 4, segments: int = 4) -> None:
    """Microseconds of an append over several rolls, in each way in turn.

    `near roll` are the 1,000 appends on either side of each. Appends during which the kernel gave the processor to
    somebody else are left out and counted: on a shared machine they are the longest and say nothing of the store.
    """
    size = 64 << 20
    taken: dict[tuple[str, str], list[int]] = {
        (way, where): [] for way in AHEAD for where in ("everywhere", "near roll")
    }
    faults, preempted, count = (dict.fromkeys(AHEAD, 0) for _ in range(3))
    record, usage, thread = [pending(0)], resource.getrusage, resource.RUSAGE_THREAD
    for number, way in enumerate(list(AHEAD) * rounds):
        store = open_store(folder / str(number), segment_size=size, **AHEAD[way])
        some: list[int] = []
        rolls, newest = [], 0
        before = usage(thread)
        while store.max_offset < segments * size:
            began = time.perf_counter_ns()
            placed = store.append(record)[0]
            nanoseconds = time.perf_counter_ns() - began
            after = usage(thread)
            faults[way] += after.ru_minflt - before.ru_minflt
            some.append(-1 if after.ru_nivcsw != before.ru_nivcsw else nanoseconds)
            before = after
            if placed.physical_offset // size != newest:
                newest = placed.physical_offset // size
                rolls.append(len(some) - 1)
        store.close()
        shutil.rmtree(folder / str(number))
        count[way] += len(some)
        preempted[way] += some.count(-1)
        taken[way, "everywhere"] += [each for each in some if each >= 0]
        for at in rolls:
            taken[way, "near roll"] += [each for each in some[max(at - 1000, 0) : at + 1000] if each >= 0]
    for (way, where), times in taken.items():
        times.sort()
        say(
            benchmark="append over rolls",
            ahead=way,
            where=where,
            appends=len(times),
            faults_per_1000=1000 * faults[way] / count[way],
            preempted_per_1000=1000 * preempted[way] / count[way],
            p50_us=times[len(times) // 2] / 1000,
            p99_us=times[len(times) * 99 // 100] / 1000,
            p999_us=times[len(times) * 999 // 1000] / 1000,
            longest_us=times[-1] / 1000,
            over_1_ms=sum(each > 1_000_000 for each in times),
        )


def _wake(flushed: threading.Event, error: BaseException | None) -> None:
    if error is not None:
        raise error
    flushed.set()


def start(folder: Path) -> None:
    """Seconds to open the store: after a clean stop, and with nothing but the log."""
    size = sum(path.stat().st_size for path in (folder / "commitlog").iterdir())
    for name in ("clean", "no index"):
        if name == "no index":
            for path in (folder / "lakeindex").iterdir():
                path.unlink()
        began = time.monotonic()
        store = open_store(folder)
        say(
            benchmark="start",
            after=name,
            log_mb=size >> 20,
            records=store.recovered.records,
            seconds=time.monotonic() - began,
            scanned_mb=store.recovered.bytes_scanned >> 20,
        )
        store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=500_000, help="records to append in a pass")
    parser.add_argument("--seconds", type=float, default=4.0, help="of the flushing benchmark")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        for batch in (1, 16, 64):
            for columns in (False, True):
                append(Path(name) / "store", chosen.records, batch, columns=columns)
        scan_again(Path(name) / "store")
        start(Path(name) / "store")
        sync_flush(Path(name) / "flush", chosen.seconds, 64)
        roll(Path(name) / "roll")


if __name__ == "__main__":
    main()
