"""A task of the reput takes less than 1 GiB of memory, whatever is in its range of the log."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming.lake import create_tables
from structured_streaming.staging.stage import stage
from tests.support.logs.raw import JOURNAL, NOW_MS, Raw, log_of, message

ROOT = Path(__file__).parents[2]
RANGE_BYTES = 16 << 20
"""Of log in a task."""
MOST_BYTES = 1 << 30


def filled(record: Raw) -> list[Raw]:
    """As many of it as a task gets."""
    return [record] * (RANGE_BYTES // len(record.encoded(0)))


def journal(count: int, group: str) -> Raw:
    batch = pb.Batch(version=1, timestamp_ms=NOW_MS)
    queue = batch.queues.add(consumer_group=group, topic="t")
    queue.events.add(queue_offset=[1] * count, attempt=[1] * count, message_id=[""] * count)
    return Raw(topic=JOURNAL.encode(), body=batch.SerializeToString())


def bomb() -> Raw:
    """A body of 16 MiB that would grow to 16 GiB."""
    stream = zlib.compressobj(9)
    first, piece = (stream.compress(bytes(64 << 20)) + stream.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return Raw(body=first + piece * ((16 << 20) // len(piece)), sys_flag=1)


LOGS = {
    "a bomb of 16 MiB": lambda: [bomb()],
    "bodies that grow to 64 MiB": lambda: [Raw(body=gzip.compress(bytes(64 << 20)), sys_flag=1)] * 34,
    "bodies that grow to 15 MiB": lambda: [Raw(body=zlib.compress(bytes(15 << 20)), sys_flag=1)] * 20,
    "zstd": lambda: filled(Raw(body=pa.compress(bytes(16 << 20), "zstd", asbytes=True), sys_flag=0x201)),
    "small records": lambda: filled(Raw(topic=b"", body=b"")),
    "large record": lambda: [Raw(body=os.urandom(60 << 20))],
    "larger record": lambda: [Raw(body=os.urandom(100 << 20))],
    "one property again and again": lambda: filled(Raw(properties=b"a\x01\x02" * 10_900)),
    "many properties": lambda: filled(Raw(properties=b"".join(b"%x\x01\x02" % n for n in range(5000)))),
    "properties that are no text": lambda: filled(Raw(properties=b"\xff\x01\xff\x02" * 8000)),
    "many keys": lambda: filled(Raw(properties=b"KEYS\x01%b\x02" % b" ".join(b"%x" % n for n in range(6000)))),
    "events in the journal": lambda: filled(journal(200_000, "g")),
    "long names in the journal": lambda: filled(journal(60_000, "g" * 1000)),
    "queues in the journal": lambda: [Raw(topic=JOURNAL.encode(), body=b"\x08\x01" + b"\x2a\x00" * 2_000_000)] * 2,
}  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LOGS)
def test_a_task_takes_less_than_a_gibibyte(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.test_staging_memory", name, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) < MOST_BYTES


def main(name: str, lake: str) -> None:
    """Prints the most memory that staging the log took, bytes."""
    create_tables(lake)
    records = LOGS[name]()
    data = log_of(message(1), *records, message(2))
    part = SimpleNamespace(
        target="store:-",
        broker="b",
        log_id="l",
        start=0,
        end=len(data),
        log_end=len(data),
        segment_size=1 << 30,
        delay_levels=None,
        erased=(),
    )
    Path("/proc/self/clear_refs").write_text("5")  # what making the log took does not count
    found = [row for batch in stage(lake, part, iter([(0, data)])) for row in batch.to_pylist()]  # type: ignore[arg-type]
    entries = sum(row["rows"] for row in found if row["table"] == "consume_queue")
    rejected = sum(row["rows"] for row in found if row["table"] == "quarantine")
    assert entries + rejected == len(records) + 2
    most = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert most is not None
    sys.stdout.write(str(int(most[1]) << 10))


if __name__ == "__main__":
    main(*sys.argv[1:])
