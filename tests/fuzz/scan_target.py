"""Coverage-guided fuzzing of the scan. One input is an options byte and a stretch of log.

    NUMBA_DISABLE_JIT=1 python -m tests.fuzz.scan_target [libFuzzer's options] [corpus folders]
    python -m tests.fuzz.scan_target --replay FILE...
    python -m tests.fuzz.scan_target --seeds FOLDER

Guidance needs the walk as plain Python, which the variable asks numba for; a replay runs either way.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

MODE_TAIL, NO_CRC, FAR, OFFSETS_RIGHT = 1, 2, 4, 8
"""Bits of the options byte: mode "tail"; CRCs unchecked; the log begins at `FAR_BASE`; see `_put_right`."""
FAR_BASE = (1 << 40) + 7
SEGMENT = 512
"""Bytes; at its multiples blanks end."""
_INPUT_BYTES = 4096


def check(data: bytes) -> None:
    """Raises AssertionError when a scan of the input is not what the scan promises."""
    from store.scan import scan

    if not data:
        return
    options, log = data[0], bytearray(data[1 : _INPUT_BYTES + 1])
    base = FAR_BASE if options & FAR else 0
    if options & OFFSETS_RIGHT:
        _put_right(log, base)
    found = scan(
        log,
        base,
        verify_crc=not options & NO_CRC,
        mode="tail" if options & MODE_TAIL else "range",
        segment_size=SEGMENT,
    )
    records = list(zip(found.physical_offset.tolist(), found.size.tolist(), strict=True))
    damage = list(zip(found.bad_offset.tolist(), found.bad_length.tolist(), strict=True))
    at = base
    for begin, size in sorted([*records, *damage]):
        _blanks(log, base, at, begin)
        assert size > 0
        at = begin + size
    _blanks(log, base, at, found.next_offset)
    if options & MODE_TAIL:
        assert not damage
        assert base <= found.next_offset <= base + len(log)
    else:
        assert (found.next_offset, found.ended) == (base + len(log), "end")
    assert records == sorted(records)
    for row in range(len(found)):
        _same_as_decoded(log, base, found, row)


def _put_right(log: bytearray, base: int) -> None:
    """Lets every magic code stand in a record that says where it is: a mutation that moves bytes would
    otherwise hardly ever leave a record behind it."""
    at = log.find(b"\xda\xa3\x20")
    while at >= 0:
        if at >= 4 and at + 32 <= len(log):
            struct.pack_into(">q", log, at + 24, base + at - 4)
        at = log.find(b"\xda\xa3\x20", at + 1)


def _blanks(log: bytearray, base: int, begin: int, end: int) -> None:
    """Asserts that [begin, end) is blanks; the last may reach behind the log's end."""
    while begin < end:
        size, magic = struct.unpack_from(">iI", log, begin - base)
        assert magic == 0xCBD43194, f"bytes at {begin} are accounted for by nothing"
        assert size == SEGMENT - begin % SEGMENT, f"a blank at {begin} ends within a segment"
        assert size >= 8
        begin += size
    assert begin == end or (begin > end == base + len(log)), "something stands twice"


def _same_as_decoded(log: bytearray, base: int, found: object, row: int) -> None:
    """Asserts that a row of the scan says what plain Python reads there."""
    from store.errors import RecordError
    from store.log.record import decode_record
    from store.scan import Scan

    assert isinstance(found, Scan)
    at, size = int(found.physical_offset[row]), int(found.size[row])
    topic = bytes(log[found.topic_start[row] :][: found.topic_length[row]])
    whole = bytes(log[at - base : at - base + size])
    try:
        record = decode_record(whole, 0, at, verify=False)
    except RecordError:
        try:
            topic.decode()
        except UnicodeDecodeError:
            return  # a topic is text for who reads the record; the scan gives its bytes
        raise
    columns = (
        found.queue_id, found.queue_offset, found.flag, found.sys_flag, found.born_timestamp,
        found.store_timestamp, found.reconsume_times, found.prepared_transaction_offset,
    )  # fmt: skip
    assert [int(column[row]) for column in columns] == [
        record.queue_id, record.queue_offset, record.flag, record.sys_flag, record.born_timestamp,
        record.store_timestamp, record.reconsume_times, record.prepared_transaction_offset,
    ]  # fmt: skip
    assert (record.physical_offset, record.size, record.topic.encode()) == (at, size, topic)
    assert bytes(record.body) == bytes(log[found.body_start[row] :][: found.body_length[row]])
    assert record.properties == bytes(log[found.properties_start[row] :][: found.properties_length[row]])
    for start, length, host in (
        (found.born_host_start, found.born_host_length, record.born_host),
        (found.store_host_start, found.store_host_length, record.store_host),
    ):
        assert host.packed == bytes(log[start[row] :][: length[row]])


def seeds() -> dict[str, bytes]:
    """Inputs to begin with: what logs hold, whole and damaged."""
    from store.log.record import Host, PendingRecord, encode_properties, encode_record

    v4, v6 = Host("10.0.0.1", 10911).packed, Host("2001:db8::1", 1).packed

    def log(*records: PendingRecord, crc: bool = True, base: int = 0, store_host: bytes = v4) -> bytes:
        data = b""
        for number, record in enumerate(records):
            data += b"".join(
                bytes(p) for p in encode_record(record, number, base + len(data), 2, store_host, crc)
            )
        return data

    def record(topic: str = "t", body: bytes = b"body", host: bytes = v4, **properties: str) -> PendingRecord:
        return PendingRecord(topic, 1, body, encode_properties(properties), 5, host)

    plain = log(record(TAGS="a"), record(UNIQ_KEY="u", KEYS="k l"))
    rest = SEGMENT - len(plain) % SEGMENT
    blank = struct.pack(">iI", rest, 0xCBD43194) + bytes(rest - 8)
    behind_blank = log(record(), base=len(plain) + rest)
    swallowing = bytearray(log(record(body=b"x" * 20), record(), record()))
    for position in (0, 84):
        (value,) = struct.unpack_from(">i", swallowing, position)
        struct.pack_into(">i", swallowing, position, value + len(log(record())))
    made = {
        "plain": plain,
        "no-crc": log(record(TAGS="ä"), record(), crc=False),
        "v6": log(record(host=v6, body=b""), record(topic="t" * 130), store_host=v6),
        "delay": log(record(topic="SCHEDULE_TOPIC_XXXX", DELAY="3", TAGS="b"), record(topic="SCHEDULE_TOPIC_XXXX", DELAY="99")),
        "far": log(record(TAGS="far"), base=FAR_BASE),
        "blank": plain + blank + behind_blank,
        "blank-last": plain + blank[:20],
        "blank-amid": plain + blank[:40] + log(record(), base=len(plain) + 40),
        "torn": plain[:-30],
        "zeros": plain + bytes(60),
        "damaged": plain[:95] + b"\xff" + plain[96:],
        "bad-digits": plain[:-5] + b"x" + plain[-4:],
        "swallowing": bytes(swallowing),
        "emoji": log(record(TAGS="😀ä"), record(TAGS="\x01")),
    }  # fmt: skip
    inputs = {}
    for name, data in made.items():
        far = FAR if name == "far" else 0
        for options in (0, MODE_TAIL, NO_CRC, OFFSETS_RIGHT | NO_CRC):
            inputs[f"{name}-{options}"] = bytes([options | far]) + data
    return inputs


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--replay"]:
        for path in arguments[1:]:
            check(Path(path).read_bytes())
        sys.stdout.write(f"replayed {len(arguments) - 1}\n")
        return
    if arguments[:1] == ["--seeds"]:
        for name, data in seeds().items():
            Path(arguments[1], name).write_bytes(data)
        return
    if os.environ.get("NUMBA_DISABLE_JIT") != "1":
        raise SystemExit("set NUMBA_DISABLE_JIT=1: compiled code gives no coverage to go by")
    import atheris

    with atheris.instrument_imports(include=["store.scan", "store.kernels.walk", "store.log.record"]):
        import store.kernels.walk
        import store.log.record
        import store.scan  # noqa: F401
    atheris.Setup([sys.argv[0], *arguments], atheris.instrument_func(check))
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
