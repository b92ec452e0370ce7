"""The scan against plain Python, and against damage that `test_store.py` does not do."""

from __future__ import annotations

import itertools
import mmap
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lakebroker_testing.logs import blank, encoded
from store.kernels import checked, walk
from store.kernels.row import BODY_START
from store.log.record import (
    BLANK_MAGIC,
    CRC_BYTES,
    Host,
    PendingRecord,
    decode_properties,
    encode_properties,
    java_hash,
)
from store.scan import (
    BAD_CRC,
    Scan,
    as_bytes,
    find_property,
    gather,
    scan,
    split_properties,
    split_words,
    topic_codes,
)
from tests.suite.evidence import rounds

HOST = Host("127.0.0.1", 10911).packed
V6 = Host("2001:db8::1", 1).packed


def pending(
    body: bytes = b"body", properties: bytes = b"", topic: str = "t", host: bytes = HOST
) -> PendingRecord:
    return PendingRecord(topic, 0, body, properties, 1, host)


def text(found: Scan, start: int, length: int) -> str:
    return bytes(found.buffer[start : start + length]).decode("utf-8", "replace")


def test_crcs_are_checked_alike_by_compiled_code_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [pending(b"x" * n, encode_properties({"KEYS": f"k{n}"})) for n in range(40)]
    assert checked.AVAILABLE, "the installed zlib-ng does not offer its CRC to compiled code"
    for crc in (True, False):
        data = bytearray(encoded(records, crc=crc)[0])
        rows = scan(bytes(data), 0).rows
        assert len(rows) == 40
        assert not checked.wrong(as_bytes(data), rows).any()
        damaged = range(3, 40, 3)
        for each in damaged:
            data[rows[each, BODY_START]] ^= 1
        found = checked.wrong(as_bytes(data), rows)
        assert np.flatnonzero(found).tolist() == list(damaged)
        for compiled in (True, False):
            with monkeypatch.context() as patch:
                patch.setattr(checked, "AVAILABLE", compiled)
                assert np.array_equal(scan(bytes(data), 0).rows, rows[~found])


def test_one_compiled_walk_serves_every_kind_of_buffer(tmp_path: Path) -> None:
    """Compiling another takes half a minute, which who is first would wait for."""
    (tmp_path / "log").write_bytes(bytes(4096))
    with (tmp_path / "log").open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        view = memoryview(mapped)
        for buffer in (bytes(8), bytearray(8), view, view.toreadonly(), np.zeros(8, dtype=np.uint8)):
            found = scan(buffer, 0)
            find_property(found, b"KEYS")
            topic_codes(found)
            del found
        view.release()
    for compiled in (walk.walk, walk.find_properties, walk.dictionary):
        assert len(compiled.signatures) == 1


def test_nothing_and_zeros() -> None:
    assert (len(scan(b"", 5)), scan(b"", 5).next_offset, scan(b"", 5).ended) == (0, 5, "end")
    for length in (1, 7, 8, 100):
        found = scan(bytes(length), 5, mode="tail")
        assert (len(found), found.next_offset, found.ended) == (0, 5, "zero")
        whole = scan(bytes(length), 5)
        assert (whole.bad_offset.tolist(), whole.bad_length.tolist()) == ([5], [length])
        assert (whole.next_offset, whole.ended) == (5 + length, "end")


@pytest.mark.parametrize("host", [HOST, V6])
@pytest.mark.parametrize("topic", ["t", "t" * 200])
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_costs_that_record_only(host: bytes, topic: str, bit: int) -> None:
    base = 1 << 33
    records = [pending(b"message", encode_properties({"TAGS": "a", "k": "v"}), topic, host) for _ in range(3)]
    data, starts = encoded(records, base)
    for position in range(starts[1], starts[2]):
        damaged = bytearray(data)
        damaged[position] ^= 1 << bit
        found = scan(damaged, base)
        offsets = (found.physical_offset - base).tolist()
        if found.bad_reason:
            assert offsets == [starts[0], starts[2]], position
            assert (found.bad_offset - base).tolist() == [starts[1]], position
            assert found.bad_length.tolist() == [starts[2] - starts[1]], position
        else:  # only the CRC's own name and separators are covered by nothing
            assert starts[2] - CRC_BYTES <= position < starts[2], position
            assert offsets == starts, position


def test_two_damaged_neighbours_are_two_rows_or_one_and_nothing_else_is_lost() -> None:
    data, starts = encoded([pending(bytes([65 + n]) * 40) for n in range(5)])
    damaged = bytearray(data)
    for start in starts[1:3]:
        damaged[start + 95] ^= 1
    found = scan(damaged, 0)
    assert found.physical_offset.tolist() == [starts[0], starts[3], starts[4]]
    assert found.bad_offset.tolist() == starts[1:3]
    assert found.bad_length.tolist() == [starts[2] - starts[1], starts[3] - starts[2]]
    assert found.bad_reason == [BAD_CRC, BAD_CRC]
    for start in starts[1:3]:
        damaged[start + 4] = 0
    found = scan(damaged, 0)
    assert found.physical_offset.tolist() == [starts[0], starts[3], starts[4]]
    assert (found.bad_offset.tolist(), found.bad_length.tolist()) == ([starts[1]], [starts[3] - starts[1]])


@pytest.mark.parametrize("crc", [True, False])
@pytest.mark.parametrize("host", [HOST, V6])
def test_a_torn_tail_ends_at_the_last_whole_record(crc: bool, host: bytes) -> None:
    properties = encode_properties({"UNIQ_KEY": "x" * 10})
    data, starts = encoded([pending(b"y" * 30, properties, host=host) for _ in range(3)], crc=crc)
    for length in range(starts[2], len(data)):
        short = scan(data[:length], 0, mode="tail")
        assert (len(short), short.next_offset) == (2, starts[2]), length
        only_zeros = not any(data[starts[2] : length])  # the first bytes of a size
        assert short.ended == ("end" if length == starts[2] else "zero" if only_zeros else "torn")
        zeroed = scan(data[:length] + bytes(len(data) - length + 50), 0, mode="tail")
        assert (len(zeroed), zeroed.next_offset) == (2, starts[2]), length
        in_range = scan(data[:length], 0)
        assert (len(in_range), in_range.next_offset) == (2, length)
        assert in_range.bad_length.sum() == length - starts[2]


def test_a_tail_scan_stops_at_the_first_bad_record() -> None:
    data, starts = encoded([pending(b"z" * 50) for _ in range(4)])
    damaged = bytearray(data)
    damaged[starts[2] + 95] ^= 1
    found = scan(damaged, 0, mode="tail")
    assert (found.physical_offset.tolist(), found.next_offset, found.ended) == (starts[:2], starts[2], "bad")
    assert not found.bad_reason
    unchecked = scan(damaged, 0, mode="tail", verify_crc=False)
    assert unchecked.physical_offset.tolist() == starts


def test_blanks_are_passed_over() -> None:
    first, _ = encoded([pending()])
    second, _ = encoded([pending()], len(first) + 30)
    segment = len(first) + 30
    found = scan(first + blank(30) + second + blank(30), 0, segment_size=segment)
    assert found.physical_offset.tolist() == [0, segment]
    assert (found.next_offset, found.ended) == (2 * segment, "end")
    assert not found.bad_reason
    for size in (7, 0, -1, 29, 31, 8, 30 + segment):
        data = first + struct.pack(">iI", size, BLANK_MAGIC) + bytes(22) + second
        wrong = scan(data, 0, segment_size=segment)
        assert wrong.physical_offset.tolist() == [0, segment]
        assert (wrong.bad_offset.tolist(), wrong.bad_length.tolist()) == ([len(first)], [30])


def segments_of_three(base: int) -> tuple[bytes, list[int], int]:
    """Two segments of three records and a blank each, where the records begin, and a segment's size."""
    properties = encode_properties({"TAGS": "a"})
    parts, starts = [], []
    for at in (base, base + 1024):
        data, some = encoded([pending(b"x" * (60 + n), properties) for n in range(3)], at)
        parts.append(data + blank(1024 - len(data)))
        starts += [at - base + each for each in some]
    return b"".join(parts), starts, 1024


def test_a_flipped_bit_of_any_header_or_blank_costs_no_other_record() -> None:
    base = 1 << 33
    data, starts, segment = segments_of_three(base)
    blanks = [starts[2] + starts[2] - starts[1] + 1, starts[5] + starts[2] - starts[1] + 1]
    for begin in (*starts, *blanks):
        for bit in range(8 * (8 if begin in blanks else 95)):
            damaged = bytearray(data)
            damaged[begin + bit // 8] ^= 1 << bit % 8
            found = scan(damaged, base, segment_size=segment)
            assert (found.physical_offset - base).tolist() == [each for each in starts if each != begin], (
                begin,
                bit,
            )
            assert (found.bad_offset - base).tolist() == [begin], (begin, bit)


@pytest.mark.parametrize("cut", [False, True])
def test_a_blank_in_mid_segment_is_damage(cut: bool) -> None:
    base = 1 << 33
    data, starts, segment = segments_of_three(base)
    for begin in starts:
        for bit in range(-1, 32):
            damaged = bytearray(data)
            struct.pack_into(">I", damaged, begin + 4, BLANK_MAGIC)
            if bit >= 0:
                damaged[begin + bit // 8] ^= 1 << bit % 8
            pieces = (
                walk.split(as_bytes(damaged), base, 0, 200, 1 << 20, segment).tolist() if cut else [len(data)]
            )
            found = [
                scan(damaged[start:end], base + start, segment_size=segment)
                for start, end in itertools.pairwise([0, *pieces])
            ]
            offsets = [int(each) - base for piece in found for each in piece.physical_offset]
            bad = [int(each) - base for piece in found for each in piece.bad_offset]
            assert offsets == [each for each in starts if each != begin], (begin, bit)
            assert bad[:1] == [begin], (begin, bit)


def test_a_record_that_lies_ends_within_the_next_one_which_is_found() -> None:
    data, starts = encoded([pending(b"\x01t\0\0" + b"a" * 20) for _ in range(3)])
    damaged = bytearray(data)
    body = 88
    struct.pack_into(">i", damaged, 0, starts[1] + body + 4)  # up to what looks like topic and properties
    struct.pack_into(">i", damaged, body - 4, starts[1])
    found = scan(damaged, 0)
    assert found.physical_offset.tolist() == starts[1:]


def test_garbage_in_front_between_and_behind_is_quarantined() -> None:
    first, _ = encoded([pending()], 100)
    second, _ = encoded([pending()], 100 + len(first) + 50)
    found = scan(b"\xda\xa3\x20\xa7" * 25 + first + b"\xda\xa3\x20" + b"?" * 47 + second + b"???", 0)
    behind = 150 + len(first) + len(second)
    assert found.physical_offset.tolist() == [100, 150 + len(first)]
    assert found.bad_offset.tolist() == [0, 100 + len(first), behind]
    assert found.bad_length.tolist() == [100, 50, 3]


def test_a_copy_of_a_record_elsewhere_is_none() -> None:
    data, _ = encoded([pending()])
    found = scan(data + data, 0)
    assert found.physical_offset.tolist() == [0]
    assert found.bad_length.tolist() == [len(data)]


def test_a_size_that_swallows_the_next_records_loses_none_of_them() -> None:
    data, starts = encoded([pending(b"a" * 20) for _ in range(4)])
    # the second record claims to reach to the end of the third: body length and size agree
    damaged = bytearray(data)
    longer = starts[3] - starts[2]
    for position in (starts[1], starts[1] + 84):
        (value,) = struct.unpack_from(">i", damaged, position)
        struct.pack_into(">i", damaged, position, value + longer)
    found = scan(damaged, 0)
    assert found.physical_offset.tolist() == [starts[0], starts[2], starts[3]]
    assert (found.bad_offset.tolist(), found.bad_length.tolist()) == ([starts[1]], [starts[2] - starts[1]])


def test_more_records_than_one_block_of_the_walk() -> None:
    data, starts = encoded([pending(b"", host=HOST) for _ in range(33_000)])
    damaged = bytearray(data)
    damaged[starts[32_800] + 40] ^= 1
    found = scan(damaged, 0)
    assert len(found) == 32_999
    assert found.bad_offset.tolist() == [starts[32_800]]
    assert found.queue_offset[-1] == 32_999


@settings(max_examples=rounds(40, 300), deadline=None)
@given(st.data())
def test_damaged_logs_never_raise_and_what_is_kept_was_written(data: st.DataObject) -> None:
    bodies = data.draw(st.lists(st.binary(max_size=60), min_size=1, max_size=6))
    log, _ = encoded([pending(body) for body in bodies])
    damaged = bytearray(log)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(log)))
        kind = data.draw(st.sampled_from(["overwrite", "insert", "delete"]))
        piece = data.draw(st.binary(min_size=1, max_size=12))
        if kind == "overwrite":
            damaged[at : at + len(piece)] = piece
        elif kind == "insert":
            damaged[at:at] = piece
        else:
            del damaged[at : at + len(piece)]
    for mode in ("range", "tail"):
        found = scan(damaged, 0, mode=mode)  # type: ignore[arg-type]
        if mode == "range":
            assert found.next_offset == len(damaged)
        for row in range(len(found)):
            start, size = int(found.physical_offset[row]), int(found.size[row])
            if bytes(damaged[start : start + size - CRC_BYTES]) != log[start : start + size - CRC_BYTES]:
                body = bytes(damaged[found.body_start[row] :][: found.body_length[row]])
                assert int.from_bytes(damaged[start + 8 : start + 12], "big") == zlib.crc32(body) & 0x7FFFFFFF
        ends = found.physical_offset[1:] - (found.physical_offset + found.size)[:-1]
        assert (ends >= 0).all()


@settings(max_examples=rounds(40, 300), deadline=None)
@given(st.binary(max_size=500), st.sampled_from(["range", "tail"]), st.booleans(), st.integers(0, 1 << 50))
def test_any_bytes_behind_a_magic_code_never_raise(data: bytes, mode: Any, crc: bool, base: int) -> None:
    start = struct.pack(">iIiiiqqi", 60 + len(data), 0xDAA320A7, 0, 0, 0, 0, base, data[0] if data else 0)
    found = scan(start + data, base, mode=mode, verify_crc=crc)
    assert base <= found.next_offset <= base + len(start) + len(data)
    if mode == "range":
        assert found.next_offset == base + len(start) + len(data)
    else:
        assert not found.bad_reason


PARTS = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"KEYS", b"TAGS", b"a", b" ", "ä".encode(), b"\xff"]), max_size=14
).map(b"".join)


@settings(max_examples=rounds(40, 300), deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=5))
@example([b"KEYS\x01\x02KEYS\x01"])
@example([b"KEYS\x01a\x02KEYS\x01\x02KEYS\x01 \x02"])
def test_properties_are_what_plain_python_says(parts: list[bytes]) -> None:
    found = scan(encoded([pending(properties=part) for part in parts])[0], 0)
    assert len(found) == len(parts)
    split = split_properties(found)
    rows, (keys, key_lengths, values, value_lengths) = split.offsets, split.columns
    tag_start, tag_length = find_property(found, b"KEYS")
    for row in range(len(parts)):
        encoded_properties = bytes(
            found.buffer[found.properties_start[row] :][: found.properties_length[row]]
        )
        expected = [part.split(b"\x01", 1) for part in encoded_properties.split(b"\x02")]
        plain: dict[bytes, bytes] = {}  # of a repeated key the last value counts that is not empty
        for pair in expected:
            if len(pair) == 2 and pair[0]:
                plain[pair[0]] = pair[1] or plain.get(pair[0], b"")
        pairs = list(plain.items())
        assert pairs == [
            (
                bytes(found.buffer[keys[i] :][: key_lengths[i]]),
                bytes(found.buffer[values[i] :][: value_lengths[i]]),
            )
            for i in range(rows[row], rows[row + 1])
        ]
        first = next((value for key, value in pairs if key == b"KEYS"), None)
        if first is None:
            assert tag_start[row] == -1
        else:
            assert bytes(found.buffer[tag_start[row] :][: tag_length[row]]) == first
        assert list(decode_properties(encoded_properties)) == list(
            dict.fromkeys(key.decode("utf-8", "replace") for key, _ in pairs)
        )


@given(st.lists(st.none() | PARTS, max_size=6), st.sampled_from([0x20, 0x02]))
def test_words_are_what_plain_python_says(slices: list[bytes | None], separator: int) -> None:
    buffer = np.frombuffer(b"".join(part or b"" for part in slices), dtype=np.uint8)
    lengths = np.array([len(part or b"") for part in slices], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    starts[[part is None for part in slices]] = -1
    rows, word_start, word_length = split_words(buffer, starts, lengths, separator)
    for row, part in enumerate(slices):
        assert [word for word in (part or b"").split(bytes([separator])) if word] == [
            bytes(buffer[word_start[i] :][: word_length[i]]) for i in range(rows[row], rows[row + 1])
        ]
    offsets, joined = gather(buffer, starts, lengths)
    assert [bytes(joined[a:b]) for a, b in itertools.pairwise(offsets)] == [part or b"" for part in slices]


def test_topics_are_a_dictionary_in_order_of_appearance() -> None:
    names = [f"topic-{n * n % 3000}" for n in range(4000)]
    found = scan(encoded([pending(b"", topic=name) for name in names], crc=False)[0], 0)
    codes, distinct = topic_codes(found)
    assert distinct == list(dict.fromkeys(names))
    assert [distinct[code] for code in codes.tolist()] == names


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12))
def test_tags_codes_are_javas(tag: str) -> None:
    found = scan(encoded([pending(properties=encode_properties({"TAGS": tag}))])[0], 0)
    assert found.tags_code[0] == java_hash(tag)


@pytest.mark.parametrize(
    ("level", "delay_s"), [("1", 1), ("4", 30), ("18", 7200), ("99", 7200), ("0", None), ("", None)]
)
def test_codes_of_scheduled_messages_are_their_delivery_times(level: str, delay_s: int | None) -> None:
    record = pending(properties=encode_properties({"TAGS": "a", "DELAY": level}), topic="SCHEDULE_TOPIC_XXXX")
    found = scan(encoded([record])[0], 0)
    assert found.tags_code[0] == (java_hash("a") if delay_s is None else 2 + 1000 * delay_s)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=30), st.integers(1, 1500), st.integers(1, 12_000))
def test_pieces_hold_whole_records_and_what_was_asked(sizes: list[int], most: int, limit: int) -> None:
    data, starts = encoded([pending(b"x" * size) for size in sizes])
    bounds = [0, *walk.split(np.frombuffer(data, dtype=np.uint8), 0, 0, most, limit, len(data) + 1).tolist()]
    end = bounds[-1]
    ends = [*starts[1:], len(data)]
    assert end == max((each for each in ends if each <= limit), default=ends[0])
    assert set(bounds) <= {*starts, len(data)}
    assert bounds == sorted(set(bounds))
    for begin, stop in itertools.pairwise(bounds):
        inside = [start for start in starts if begin <= start < stop]
        assert stop - begin <= most or len(inside) == 1
