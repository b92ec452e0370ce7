"""Messages of a queue out of the lake are the records that the log had."""

from __future__ import annotations

import shutil
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from broker_gateway.lake.messages import LakeMessages, Stretch
from broker_gateway.lake.reader import Lake, LakeReadStoppedError, LakeUnreachableError
from store.log.record import (
    SYS_COMMIT,
    SYS_COMPRESSED,
    SYS_PREPARED,
    SYS_ROLLBACK,
    Host,
    decode_record,
    encode_properties,
)
from structured_streaming.staging.wanted import Wanted
from tests.support.lakes.staged import StagedLake
from tests.support.logs.raw import NOW_MS, Raw, log_of

BIG = 1 << 30


def queue(topic: str, queue_id: int, *offsets: int, **fields: object) -> list[Raw]:
    properties = encode_properties({"TAGS": "a", "UNIQ_KEY": "id", "name": "value é"})
    made = Raw(topic.encode(), b"body", properties, queue_id)
    made = replace(made, **fields)  # type: ignore[arg-type]
    return [
        replace(made, queue_offset=offset, store_timestamp=NOW_MS + offset % 1_000_000) for offset in offsets
    ]


def messages(lake: StagedLake, broker: str = "b") -> LakeMessages:
    return LakeMessages(Lake(str(lake.folder)), broker)


def records_of(data: bytes) -> dict[tuple[str, int, int], bytes]:
    found, at = {}, 0
    while at < len(data):
        record = decode_record(data, at, at)
        found[record.topic, record.queue_id, record.queue_offset] = data[at : at + record.size]
        at += record.size
    return found


def test_records_are_those_of_the_log_byte_for_byte(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    unlike = [
        *queue("t", 1, 0, born_host=Host("::1", 1).packed, store_host=Host("fe80::2", 70).packed),
        *queue(
            "t",
            1,
            1,
            body=b"",
            flag=7,
            reconsume_times=3,
            sys_flag=SYS_COMMIT,
            prepared_transaction_offset=99,
        ),
        *queue("t", 1, 2, properties=b"", born_timestamp=NOW_MS - 1, body=bytes(range(256))),
        *queue("t" * 200, 1, 3),
    ]
    data = log_of(*queue("t", 0, 0, 1, 2), *unlike, *queue("u", 0, 0, 1))
    lake.take(data)
    wanted = records_of(data)
    look = messages(lake)
    for topic, queue_id in {(topic, queue_id) for topic, queue_id, _ in wanted}:
        found = look.read(topic, queue_id, 0, 1000, BIG)
        assert {(topic, queue_id, each): found.record(each) for each in found.offsets} == {
            place: record for place, record in wanted.items() if place[:2] == (topic, queue_id)
        }
        assert (found.begin, found.end) == (0, 1000)
        assert found.record(500) is None


def test_what_no_consumer_reaches_is_none_of_the_queue(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    half = queue("t", 0, 1, sys_flag=SYS_PREPARED) + queue("t", 0, 2, sys_flag=SYS_ROLLBACK)
    lake.take(log_of(*queue("t", 0, 5), *half, *queue("t", 0, 6, sys_flag=SYS_COMMIT)))
    assert list(messages(lake).read("t", 0, 0, 9, BIG).offsets) == [5, 6]
    assert messages(lake).first("t", 0, 0, 9) == 5


def test_a_body_whose_compression_was_undone_says_so(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    plain = queue("t", 0, 0, body=zlib.compress(b"text" * 99), sys_flag=SYS_COMPRESSED | SYS_COMMIT)
    broken = queue("t", 0, 1, body=b"no zlib", sys_flag=SYS_COMPRESSED)
    lake.take(log_of(*plain, *broken))
    found = messages(lake).read("t", 0, 0, 2, BIG)
    first, second = (decode_record(record) for record in found.records if record is not None)
    assert (bytes(first.body), first.sys_flag) == (b"text" * 99, SYS_COMMIT)
    assert (bytes(second.body), second.sys_flag) == (b"no zlib", SYS_COMPRESSED)


def test_a_body_that_was_left_out_makes_no_record(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 0), *queue("u", 0, 0)), wanted=Wanted(without_bodies=("t",)))
    assert messages(lake).read("u", 0, 0, 1, BIG).record(0) is not None
    found = messages(lake).read("t", 0, 0, 1, BIG)
    assert (list(found.offsets), list(found.records)) == ([0], [None])


def test_a_stretch_ends_where_it_is_large_enough_and_has_one_message_at_least(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, *range(3, 6)), *queue("t", 0, *range(6, 9), body=b"x" * 1000)))
    look = messages(lake)
    begin, found = 0, []
    while begin < 20:
        stretch = look.read("t", 0, begin, 20, 500)
        assert stretch.begin == begin < stretch.end
        begin = stretch.end
        found.append(list(stretch.offsets))
    assert found == [[3], [4], [5], [6], [7], [8]]
    assert sum(look.read("t", 0, 0, 20, BIG).size for _ in range(1)) > 3000


def test_wide_gaps_are_stepped_over_at_once(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    far = 1 << 50
    lake.take(log_of(*queue("t", 0, 1, far, far + 1)))
    look = messages(lake)
    assert look.read("t", 0, 2, far + 9, BIG).offsets == [far, far + 1]
    assert look.read("t", 0, 2, far, BIG) == Stretch(2, far)
    assert look.read("t", 0, far + 2, 1 << 60, BIG) == Stretch(far + 2, 1 << 60)
    assert look.first("t", 0, 2, 1 << 60) == far


def test_every_log_of_that_broker_alone_and_what_comes_later(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 4, 5)))
    lake.take(log_of(*queue("t", 0, 0, 1, 2, 3, 4, 5, 6)), broker="a")
    look = messages(lake)
    assert look.read("t", 0, 0, 99, BIG).offsets == [4, 5]
    lake.take(log_of(*queue("t", 0, 6, 7), *queue("t", 1, 8)))
    assert look.read("t", 0, 0, 99, BIG).offsets == [4, 5, 6, 7]
    assert look.read("t", 1, 0, 99, BIG).offsets == [8]
    assert look.read("v", 0, 0, 99, BIG).offsets == ()
    assert messages(lake, "a").first("t", 0, 3, 99) == 3


def test_of_a_place_that_is_there_twice_the_later_message_counts(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    (one,) = queue("t", 0, 1, body=b"earlier")
    lake.take(log_of(replace(one, body=b"later", store_timestamp=NOW_MS + 99)))
    lake.take(log_of(one))
    record = messages(lake).read("t", 0, 0, 9, BIG).record(1)
    assert record is not None
    assert bytes(decode_record(record).body) == b"later"


def test_the_first_is_asked_again_when_rows_are_removed(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    look = messages(lake)
    assert look.first("t", 0, 0, 99) is None
    for offset in (3, 4, 5):
        lake.take(log_of(*queue("t", 0, offset), *queue("u", 0, 0)))
    assert look.first("t", 0, 0, 99) == 3
    assert look.first("t", 0, 4, 99) == 4
    assert look.first("t", 0, 6, 99) is None
    DeltaTable(str(lake.folder / "messages")).delete("topic = 't' AND queue_offset < 5")
    assert look.first("t", 0, 0, 99) == 5
    assert look.read("t", 0, 0, 99, BIG).offsets == [5]


def test_merged_files_are_read_where_the_old_ones_are_gone(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    for offset in range(6):
        lake.take(log_of(*queue("t", 0, offset)))
    look = messages(lake)
    assert look.read("t", 0, 0, 3, BIG).offsets == [0, 1, 2]
    table = DeltaTable(str(lake.folder / "messages"))
    table.optimize.compact()
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert look.read("t", 0, 0, 9, BIG).offsets == [0, 1, 2, 3, 4, 5]


def test_the_first_message_since_a_time(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    for offset in (10, 20, 30):
        lake.take(log_of(*queue("t", 0, offset, offset + 1)))
    look = messages(lake)
    times = {0: 10, 10: 10, 11: 11, 12: 20, 30: 30, 31: 31, 32: None}
    assert {time: look.at_time("t", 0, 0, 99, NOW_MS + time) for time in times} == times
    assert look.at_time("t", 0, 21, 99, NOW_MS) == 21
    assert look.at_time("t", 0, 0, 20, NOW_MS + 15) is None


def test_a_lake_that_is_gone_empty_or_behind_is_no_lake_without_messages(tmp_path: Path) -> None:
    gone = LakeMessages(Lake(str(tmp_path / "absent")), "b")
    with pytest.raises(LakeUnreachableError, match=r"absent.*no such table"):
        gone.read("t", 0, 3, 9, BIG)
    with pytest.raises(LakeUnreachableError, match="no such table"):
        gone.first("t", 0, 0, 9)
    lake = StagedLake(tmp_path / "lake")
    data = log_of(*queue("t", 0, 3))
    log = ["log-1", len(data)]
    look = LakeMessages(Lake(str(lake.folder)), "b", lambda: (log[0], log[1]))  # type: ignore[return-value]
    with pytest.raises(
        LakeUnreachableError, match=rf"has the log log-1 up to 0, and it is on disk from {len(data)} on"
    ):
        look.read("t", 0, 0, 9, BIG)
    lake.take(data)
    assert look.read("t", 0, 0, 9, BIG).offsets == [3]
    log[1] = len(data) + 1
    with pytest.raises(LakeUnreachableError, match=f"up to {len(data)}"):
        look.first("t", 0, 0, 9)


def test_a_lake_that_cannot_be_read_is_named_and_read_again_later(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 1)))
    look = messages(lake)
    (data,) = lake.files["messages"]
    data.rename(tmp_path / "aside")
    with pytest.raises(LakeUnreachableError, match=r"messages.*cannot be read"):
        look.read("t", 0, 0, 9, BIG)
    (tmp_path / "aside").rename(data)
    assert look.read("t", 0, 0, 9, BIG).offsets == [1]
    content = data.read_bytes()
    data.write_bytes(content[:100])
    with pytest.raises(LakeUnreachableError, match="cannot be read"):
        look.read("t", 0, 0, 9, BIG)
    shutil.rmtree(lake.folder / "messages" / "_delta_log")
    with pytest.raises(LakeUnreachableError, match="messages"):
        messages(lake).read("t", 0, 0, 9, BIG)


def test_a_reading_ends_when_the_broker_is_to_stop(tmp_path: Path) -> None:
    lake = StagedLake(tmp_path / "lake")
    lake.take(log_of(*queue("t", 0, 3)))
    with pytest.raises(LakeReadStoppedError):
        LakeMessages(Lake(str(lake.folder), lambda: True), "b").read("t", 0, 0, 9, BIG)
