"""A store that the real broker 5.5.0 wrote: our scan says what its ConsumeQueue and Index files say."""

from __future__ import annotations

import struct
import tarfile
from pathlib import Path

import pytest

from store.errors import StoreDamagedError
from store.log.record import SYS_COMMIT, SYS_TRANSACTION_MASK, decode_record, java_hash
from store.log_reader import LogReader
from store.running.log import RunningLog
from store.scan import Scan, scan, topic_codes

ARCHIVE = Path(__file__).parents[2] / "data" / "rocketmq-5.5.0-store.tar.gz"
SLOTS = 5000
"""maxHashSlotNum of that broker."""
KINDS = {
    "normal",
    "fifo",
    "delay",
    "tx",
    "bench",
    "rmq_sys_wheel_timer",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "rmq_sys_REVIVE_LOG_DefaultCluster",
    "%RETRY%g_delay_delay",
    "%RETRY%g_dlq_normal",
    "%DLQ%g_dlq",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder / "store-cap"


@pytest.fixture(scope="module")
def scanned(store: Path) -> Scan:
    return scan((store / "commitlog" / f"{0:020d}").read_bytes(), 0, mode="tail")


def test_every_record_of_every_kind_is_found(scanned: Scan) -> None:
    assert len(scanned) == 295
    assert scanned.ended == "zero"
    assert not scanned.bad_reason
    assert set(topic_codes(scanned)[1]) == KINDS


def test_consume_queues_are_what_the_broker_wrote(store: Path, scanned: Scan) -> None:
    codes, names = topic_codes(scanned)
    ours: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
    kinds = scanned.sys_flag & SYS_TRANSACTION_MASK
    for row in range(len(scanned)):
        if kinds[row] in (0, SYS_COMMIT):
            queue = ours.setdefault((names[codes[row]], int(scanned.queue_id[row])), {})
            queue[int(scanned.queue_offset[row])] = (
                int(scanned.physical_offset[row]),
                int(scanned.size[row]),
                int(scanned.tags_code[row]),
            )
    theirs: dict[tuple[str, int], dict[int, tuple[int, int, int]]] = {}
    for path in (store / "consumequeue").glob("*/*/*"):
        queue = theirs.setdefault((path.parts[-3], int(path.parts[-2])), {})
        for position, unit in enumerate(struct.iter_unpack(">qiq", path.read_bytes())):
            if unit[1]:
                queue[int(path.name) // 20 + position] = unit
    assert ours == theirs
    assert sum(len(queue) for queue in ours.values()) > 250


def test_index_entries_are_what_the_broker_wrote(store: Path, scanned: Scan) -> None:
    ours = set()
    for row in range(len(scanned)):
        record = decode_record(scanned.buffer.data, int(scanned.physical_offset[row] - scanned.base_offset))
        properties = record.properties_map()
        keys = [properties.get("UNIQ_KEY", ""), *properties.get("KEYS", "").split(" ")]
        if "TAGS" in properties:
            keys.append(f"T#{properties['TAGS']}")  # 5.5 indexes tags too
        for key in keys:
            if key:
                ours.add((abs(java_hash(f"{record.topic}#{key}")), record.physical_offset))
    theirs = set()
    for path in (store / "index").iterdir():
        data = path.read_bytes()
        slots, entries = struct.unpack_from(">ii", data, 32)
        first = 40 + 4 * SLOTS
        assert slots > 0
        for number in range(1, entries):
            key_hash, offset, _, _ = struct.unpack_from(">iqii", data, first + 20 * number)
            theirs.add((key_hash, offset))
    assert ours == theirs
    assert len(ours) > 250


def test_the_store_is_served_beside_its_broker(store: Path, scanned: Scan, tmp_path: Path) -> None:
    log = RunningLog(store, tmp_path / "state", "broker-a", "DefaultCluster")
    end = log.describe(30_000, scanned.next_offset - 1).end
    assert end == scanned.next_offset
    parts = [scan(data, start) for start, data in log.read(log.log_id, 0, end, 4096)]
    assert sum(map(len, parts)) == len(scanned)
    log.close()


def test_the_store_is_read_by_path(store: Path, scanned: Scan) -> None:
    with pytest.raises(StoreDamagedError, match="lakebroker sidecar --store"):
        LogReader(store)
    reader = LogReader(store, broker="broker-a", log_id="golden")
    end = reader.readable_offset
    assert (reader.min_offset, end) == (0, scanned.next_offset)
    found = [
        offset
        for start, data, _ in reader.read_chunks(0, end, 4096)
        for offset in scan(data, start).physical_offset.tolist()
    ]
    assert found == scanned.physical_offset.tolist()
    reader.close()


def test_every_record_decodes_to_what_the_scan_says(scanned: Scan) -> None:
    data = scanned.buffer.data
    for row in range(len(scanned)):
        record = decode_record(data, int(scanned.physical_offset[row]), int(scanned.physical_offset[row]))
        assert (
            record.size,
            record.queue_id,
            record.queue_offset,
            record.sys_flag,
            record.reconsume_times,
        ) == (
            scanned.size[row],
            scanned.queue_id[row],
            scanned.queue_offset[row],
            scanned.sys_flag[row],
            scanned.reconsume_times[row],
        )
        assert (record.born_timestamp, record.store_timestamp, record.flag) == (
            scanned.born_timestamp[row],
            scanned.store_timestamp[row],
            scanned.flag[row],
        )


def test_a_flipped_bit_in_any_body_is_found(scanned: Scan) -> None:
    damaged = bytearray(scanned.buffer[: scanned.next_offset].tobytes())
    rows = [row for row in range(len(scanned)) if scanned.body_length[row]]
    for row in rows:
        damaged[int(scanned.body_start[row])] ^= 0x80
    found = scan(damaged, 0)
    assert found.bad_offset.tolist() == [int(scanned.physical_offset[row]) for row in rows]
    assert len(found) == len(scanned) - len(rows)
