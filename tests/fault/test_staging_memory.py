"""A task of the reput takes less than 1 GiB of memory, whatever is in its range of the log."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store import scan
from structured_streaming.lake import create_tables
from structured_streaming.staging.stage import stage
from structured_streaming.staging.wanted import EVERYTHING
from tests.suite.evidence import EVIDENCE
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
    "queues in the journal": lambda: [Raw(topic=JOURNAL.encode(), body=b"\x08\x01" + b"\x2a\x00" * 2_000_000)] * (2 if EVIDENCE else 1),
}  # fmt: skip


CHOSEN = tuple(LOGS) if EVIDENCE else (
    "a bomb of 16 MiB", "bodies that grow to 15 MiB", "large record", "many keys", "queues in the journal"
)  # fmt: skip
"""Of each kind the one that takes most."""


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The most memory that staging each log took, bytes."""
    folder = tmp_path_factory.mktemp("staged")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.test_staging_memory", str(folder / "lake"), *CHOSEN],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CHOSEN)
def test_a_task_takes_less_than_a_gibibyte(name: str, taken: dict[str, int]) -> None:
    assert taken[name] < MOST_BYTES


def most_of_this_process() -> int:
    """The most memory that it had, bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def staged(lake: Path, log: Callable[[], list[Raw]]) -> int:
    """The most memory that this process has while it stages a log, bytes."""
    records = log()
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
    batches = stage(str(lake), part, iter([(0, data)]), EVERYTHING)  # type: ignore[arg-type]
    found = [row for batch in batches for row in batch.to_pylist()]
    entries = sum(row["rows"] for row in found if row["table"] == "consume_queue")
    rejected = sum(row["rows"] for row in found if row["table"] == "quarantine")
    assert entries + rejected == len(records) + 2
    return most_of_this_process()


def in_child(work: Callable[[], int]) -> int:
    """The result of `work` in a process of its own, which has all modules already."""
    output, given = os.pipe()
    if not (child := os.fork()):
        try:
            os.write(given, b"%d" % work())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(given)
    with os.fdopen(output, "rb") as told:
        result = told.read()
    os.waitpid(child, 0)
    return int(result)


def main(lake: Path, *names: str) -> None:
    """Prints what each of these logs took, with what the modules take."""
    scan.warm()
    modules = most_of_this_process()
    in_child(lambda: len(create_tables(str(lake)).path.name))
    print(json.dumps({name: modules + in_child(partial(staged, lake, LOGS[name])) for name in names}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
