"""`store rebuild` of records that stand in further queues (INNER_MULTI_DISPATCH)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from store.log.record import SYS_PREPARED, Host, PendingRecord, encode_properties, tags_code
from store.log_reader import LogReader
from store.log_source import FolderLog
from store.message_store import MessageStore
from store.opening import StoreOptions
from store.tools.rebuild import further_queues, rebuild
from tests.support.logs.contents import Unit, units

HOST = Host("127.0.0.1", 10911)


def put(
    store: MessageStore, topic: str, queue_id: int, names: str, offsets: str | None, flag: int = 0
) -> Unit:
    properties = {"INNER_MULTI_DISPATCH": names, "TAGS": "a", "UNIQ_KEY": "U"}
    if offsets is not None:
        properties["INNER_MULTI_QUEUE_OFFSET"] = offsets
    record = PendingRecord(
        topic, queue_id, b"x", encode_properties(properties), 1, HOST.packed, flag, tags_code=tags_code("a")
    )
    placed = store.append([record])[0]
    return placed.physical_offset, placed.size, tags_code("a")


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    return MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=1 << 20)
    )


def folders(root: Path) -> set[tuple[str, int]]:
    return {(path.parent.name, int(path.name)) for path in (root / "consumequeue").glob("*/*")}


def test_further_queues_are_written_as_that_broker_dispatches_them(
    tmp_path: Path, store: MessageStore
) -> None:
    first = put(store, "t", 3, "%LMQ%a,%LMQ%b", "0,5")
    second = put(store, "u", 1, "%LMQ%a", "1")
    put(store, "t", 0, "%LMQ%a,%LMQ%b", "2")
    put(store, "t", 0, "%LMQ%a", None)
    put(store, "%RETRY%g", 0, "%LMQ%a", "2")
    put(store, "rmq_sys_x", 0, "%LMQ%a", "2")
    put(store, "SCHEDULE_TOPIC_XXXX", 0, "%LMQ%a", "2")
    put(store, "t", 0, "%LMQ%a", "2", SYS_PREPARED)
    third = put(store, "t", 7, "%LMQ%a,plain", "4,0")
    store.close()
    reader = LogReader(tmp_path)
    done = rebuild(
        FolderLog(tmp_path),
        tmp_path,
        units_per_file=10,
        slots=11,
        entries=100,
        enable_multi_dispatch=True,
        enable_lmq=True,
    )
    reader.close()
    blank = (0, 0x7FFFFFFF, 0)
    assert units(tmp_path, "%LMQ%a", 0) == {0: first, 1: second, 2: blank, 3: blank, 4: third}
    assert units(tmp_path, "%LMQ%b", 0) == {**dict.fromkeys(range(5), blank), 5: first}
    assert units(tmp_path, "plain", 7) == {0: third}
    assert units(tmp_path, "t", 3) == {0: first}
    assert (done.multi_dispatch, done.further_units, done.units) == (3, 5, 8 + 5)


def test_without_lmq_the_queue_id_is_the_records(tmp_path: Path, store: MessageStore) -> None:
    only = put(store, "t", 3, "%LMQ%a", "0")
    store.close()
    reader = LogReader(tmp_path)
    rebuild(FolderLog(tmp_path), tmp_path, slots=11, entries=100, enable_multi_dispatch=True)
    reader.close()
    assert units(tmp_path, "%LMQ%a", 3) == {0: only}


def test_an_offset_that_is_taken_is_passed_over_and_takes_no_queue_with_it(
    tmp_path: Path, store: MessageStore
) -> None:
    own = [put(store, "t", 0, "%LMQ%a", str(offset)) for offset in (0, 1, 1, 0, 2)]
    put(store, "u", 0, "t", "1")
    store.close()
    reader = LogReader(tmp_path)
    rebuild(FolderLog(tmp_path), tmp_path, slots=11, entries=100, enable_multi_dispatch=True, enable_lmq=True)
    reader.close()
    assert units(tmp_path, "%LMQ%a", 0) == {0: own[0], 1: own[1], 2: own[4]}
    assert units(tmp_path, "t", 0) == dict(enumerate(own))


def test_the_command_says_what_it_left_out(tmp_path: Path, store: MessageStore) -> None:
    put(store, "t", 0, "%LMQ%a", "0")
    store.close()
    command = ["store", "rebuild", str(tmp_path), "--index-slots", "11", "--index-entries", "100"]
    left_out = CliRunner().invoke(app, command)
    assert left_out.exit_code == 0, left_out.output
    assert "further queues (INNER_MULTI_DISPATCH): 1;" in left_out.stderr
    assert "--enable-multi-dispatch" in left_out.stderr
    assert ("%LMQ%a", 0) not in folders(tmp_path)
    written = CliRunner().invoke(app, [*command, "--enable-multi-dispatch", "--enable-lmq", "--json"])
    assert written.exit_code == 0, written.output
    assert json.loads(written.stdout)["further_units"] == 1
    assert "further queues" not in written.stderr
    assert ("%LMQ%a", 0) in folders(tmp_path)


@pytest.mark.parametrize(
    ("names", "offsets", "wanted"),
    [
        ("%LMQ%a,b", "7,8", [(("%LMQ%a", 0), 7), (("b", 4), 8)]),
        ("%LMQ%a,b", ",8", [(("b", 4), 8)]),
        ("%LMQ%a,b", "7,", []),
        ("%LMQ%a,", "7", [(("%LMQ%a", 0), 7)]),
        ("%LMQ%a", "7,8", []),
        ("", "", []),
        ("a/b,..,.,%LMQ%ok, ", "1,2,3,4,5", [(("%LMQ%ok", 0), 4)]),
        ("%LMQ%a,%LMQ%b,%LMQ%c,%LMQ%d", "-1,٣,x,99999999999999999999", []),
        ("%LMQ%a", str(1 << 62), []),
    ],
)
def test_names_and_offsets_are_read_as_the_original_does(
    names: str, offsets: str, wanted: list[tuple[tuple[str, int], int]]
) -> None:
    assert further_queues(names, offsets, 4, True) == wanted
