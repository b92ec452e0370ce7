"""Encode, append, roll, scan, damage, recovery: real files, no processes but where a second one matters."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakebroker_testing.logs import encoded, open_store, pending
from store.errors import RecordTooLargeError, StoreError, StoreLockedError, StoreReadOnlyError
from store.log.record import (
    CRC_BYTES,
    MAGIC_V2,
    Host,
    decode_properties,
    decode_record,
    encode_properties,
    java_hash,
)
from store.log_reader import LogReader
from store.scan import find_property, gather, scan, split_properties, split_words, topic_codes
from tests.suite.evidence import rounds
from tests.support.waiting import LIMIT_S

HOST = Host("127.0.0.1", 10911)


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("topic", ["t", "%DLQ%" + "g" * 200])
@pytest.mark.parametrize("host", [Host("1.2.3.4", 9), Host("2001:db8::1", 65535)])
def test_what_is_encoded_decodes_to_the_same(crc: bool, topic: str, host: Host) -> None:
    record = pending(topic, b"\x00\xff" * 100, 3, TAGS="ä", KEYS="a b", UNIQ_KEY="U")
    record.born_host = host.packed
    data, _ = encoded([record], 1000, crc)
    found = decode_record(data, 0, 1000)
    assert (found.topic, bytes(found.body), found.queue_id, found.born_host) == (
        topic,
        b"\x00\xff" * 100,
        3,
        host,
    )
    properties = found.properties_map()
    assert properties.pop("__CRC32#", None) is not None or not crc
    assert properties == {"TAGS": "ä", "KEYS": "a b", "UNIQ_KEY": "U"}
    assert (int.from_bytes(data[4:8], "big") == MAGIC_V2) == (len(topic) > 127)
    columns = scan(data, 1000)
    assert len(columns) == 1
    assert columns.tags_code[0] == java_hash("ä")
    assert topic_codes(columns)[1] == [topic]


def test_java_hash_is_javas() -> None:
    assert java_hash("Aa") == java_hash("BB") == 2112
    assert java_hash("lakebroker-ünï-😀") == scan_hash("lakebroker-ünï-😀")


def scan_hash(tag: str) -> int:
    return int(scan(encoded([pending(TAGS=tag)])[0], 0).tags_code[0])


def test_every_flipped_bit_is_found_and_costs_one_record() -> None:
    records = [pending(body=f"message {n}".encode() * 3, TAGS="x", UNIQ_KEY=f"id{n}") for n in range(3)]
    data, starts = encoded(records)
    for position in range(starts[1], starts[2]):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        found = scan(damaged, 0)
        if not found.bad_reason:  # the name of the CRC property itself: body and lengths still check out
            assert starts[2] - CRC_BYTES <= position < starts[2]
            continue
        assert found.physical_offset.tolist() == [starts[0], starts[2]], position
        assert found.bad_offset.tolist() == [starts[1]], position
        assert found.bad_length.tolist() == [starts[2] - starts[1]], position


def test_a_tail_torn_at_any_byte_ends_at_the_last_whole_record() -> None:
    data, starts = encoded([pending(body=b"x" * 50) for _ in range(3)])
    for length in range(starts[2], len(data)):
        zeroed = data[:length] + bytes(len(data) - length + 40)
        found = scan(zeroed, 0, mode="tail")
        torn_crc_only = zeroed[: len(data)] == data
        assert len(found) == (3 if torn_crc_only else 2), length
        assert found.next_offset == (len(data) if torn_crc_only else starts[2])


@settings(max_examples=rounds(40, 300), deadline=None)
@given(st.binary(max_size=600), st.sampled_from(["range", "tail"]))
def test_scan_of_anything_ends_and_never_raises(data: bytes, mode: Any) -> None:
    found = scan(data, 0, mode=mode)
    assert 0 <= found.next_offset <= len(data)
    assert len(found) + len(found.bad_reason) <= max(len(data), 1)


@settings(max_examples=rounds(40, 200), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.binary(max_size=200),
            st.dictionaries(
                st.from_regex(r"[A-Za-z_]{1,8}", fullmatch=True), st.text("abcä 😀", max_size=20), max_size=4
            ),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_scan_says_what_was_encoded(rows: list[tuple[bytes, dict[str, str]]]) -> None:
    data, starts = encoded([pending(body=body, **properties) for body, properties in rows])
    found = scan(data, 0)
    assert found.physical_offset.tolist() == starts
    offsets, bodies = gather(found.buffer, found.body_start, found.body_length)
    assert [bodies[a:b].tobytes() for a, b in itertools.pairwise(offsets)] == [b for b, _ in rows]
    split = split_properties(found)
    row_offsets, (key_start, key_length, value_start, value_length) = split.offsets, split.columns
    for row, (_, properties) in enumerate(rows):
        pairs = {
            bytes(found.buffer[key_start[i] : key_start[i] + key_length[i]]).decode(): bytes(
                found.buffer[value_start[i] : value_start[i] + value_length[i]]
            ).decode()
            for i in range(row_offsets[row], row_offsets[row + 1])
        }
        pairs.pop("__CRC32#")
        assert pairs == properties
    start, length = find_property(found, b"KEYS")
    words, word_start, word_length = split_words(found.buffer, start, length)
    for row, (_, properties) in enumerate(rows):
        expected = [word for word in properties.get("KEYS", "").split(" ") if word]
        assert expected == [
            bytes(found.buffer[word_start[i] : word_start[i] + word_length[i]]).decode()
            for i in range(words[row], words[row + 1])
        ]


def test_append_rolls_and_a_second_start_goes_on(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for number in range(60):
        (placed,) = store.append([pending("t", bytes([number]) * 5000, number % 2)])
        assert placed.queue_offset == number // 2
    end = store.max_offset
    assert end > 3 * (1 << 16)
    store.close()
    assert not (tmp_path / "abort").exists()
    store = open_store(tmp_path)
    assert store.max_offset == end
    assert store.recovered.records == 60
    assert store.recovered.clean
    assert [store.index.max_offset("t", queue) for queue in (0, 1)] == [30, 30]
    assert sum(len(part) for part in store.scan_from(store.min_offset)) == 60
    assert store.append([pending("t")])[0].queue_offset == 30
    store.close()


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(RecordTooLargeError, match="does not fit a segment"):
        store.append([pending(), pending(body=b"x" * (1 << 16))])
    assert store.max_offset == 0
    assert store.index.max_offset("t", 0) == 0
    store.close()
    with pytest.raises(StoreReadOnlyError):
        store.append([pending()])


def test_a_torn_tail_is_cut_and_nothing_old_comes_back(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(body=bytes([n]) * 100)])[0] for n in range(5)]
    store.close()
    shutil.rmtree(tmp_path / "lakeindex")
    (tmp_path / "flushed").unlink()
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(placed[2].physical_offset + 100)
        file.write(b"\xff")
    store = open_store(tmp_path)
    assert store.recovered.cut_at == placed[2].physical_offset == store.max_offset
    assert store.index.max_offset("t", 0) == 2
    store.close()
    raw = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert raw[placed[2].physical_offset :].count(0) == len(raw) - placed[2].physical_offset


def test_damage_below_the_flushed_offset_is_kept_and_reported(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    placed = [store.append([pending(body=bytes([n]) * 100)])[0] for n in range(5)]
    end = store.max_offset
    store.close()
    shutil.rmtree(tmp_path / "lakeindex")
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(placed[2].physical_offset + 100)
        file.write(b"\xff")
    store = open_store(tmp_path)
    assert store.max_offset == end
    assert [row[:2] for row in store.recovered.bad] == [(placed[2].physical_offset, placed[2].size)]
    assert store.index.entries("t", 0, 0, 9)[1].tolist()[2] == 0
    store.close()


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    code = (
        "import sys; from pathlib import Path; from store.message_store import MessageStore;"
        "from store.log.record import Host; from store.opening import StoreOptions;"
        "MessageStore.open(Path(sys.argv[1]), StoreOptions(broker='b', cluster='c', "
        "store_host=Host('127.0.0.1', 1), segment_size=65536))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert StoreLockedError.__name__ in done.stderr
    assert "Lock failed, MQ already started" in done.stderr
    store.close()


def test_waiters_are_called_when_their_bytes_are_on_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush_interval_ms=60_000)
    store.append([pending()])
    called = threading.Event()
    errors: list[BaseException | None] = []
    store.wait_flushed(store.max_offset, lambda error: (errors.append(error), called.set()))
    assert called.wait(LIMIT_S)
    assert errors == [None]
    assert store.flushed_offset == store.max_offset == LogReader(tmp_path).readable_offset
    store.close()


def test_a_failed_flush_makes_the_store_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(tmp_path, flush_interval_ms=60_000)
    store.append([pending()])
    real = os.fdatasync

    def failing(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    called = threading.Event()
    errors: list[BaseException | None] = []
    store.wait_flushed(store.max_offset, lambda error: (errors.append(error), called.set()))
    assert called.wait(LIMIT_S)
    monkeypatch.setattr(os, "fdatasync", real)
    assert isinstance(errors[0], StoreReadOnlyError)
    with pytest.raises(StoreReadOnlyError, match="Input/output error"):
        store.append([pending()])
    with pytest.raises(StoreReadOnlyError):
        store.close()


def test_a_reader_by_path_never_sees_half_a_record(tmp_path: Path) -> None:
    store = open_store(tmp_path, segment_size=1 << 20)
    store.append([pending(body=b"first")])
    segment = store.read(0, 1).obj
    stop = threading.Event()
    problems: list[str] = []

    def look() -> None:
        view = np.frombuffer(segment, dtype=np.uint8)
        while not stop.is_set():
            found = scan(view[: 1 << 19], 0, mode="tail")
            if found.ended not in ("zero", "end"):
                problems.append(f"{found.ended} at {found.next_offset}")

    reader = threading.Thread(target=look)
    reader.start()
    while store.max_offset < (1 << 19) - 4096:
        store.append([pending(body=os.urandom(300)) for _ in range(3)])
    stop.set()
    reader.join()
    assert not problems
    store.close()


def test_reader_and_store_split_alike(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for _ in range(100):
        store.append([pending(body=b"x" * 3000)])
    store.wait_flushed(store.max_offset, lambda error: None)
    end = store.max_offset
    store.close()
    reader = LogReader(tmp_path)
    assert reader.readable_offset == end
    cuts = reader.split(0, end, 20_000)
    assert (cuts[0], cuts[-1]) == (0, end)
    assert sum(len(scan(data, offset)) for offset, data, _ in reader.read_chunks(0, end, 20_000)) == 100
    reader.close()
    with pytest.raises(StoreError):
        LogReader(tmp_path / "nothing")


def test_properties_round_trip() -> None:
    assert decode_properties(encode_properties({"a": "1", "b": ""})) == {"a": "1", "b": ""}
    assert decode_properties(b"no separator\x02\xff\x01x\x02") == {"�": "x"}
