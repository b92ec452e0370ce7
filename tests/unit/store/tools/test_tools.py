"""`lakebroker store inspect` and `verify`, as commands, on our stores and on a real broker's."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.faults import flip_byte
from store.log.record import Host, PendingRecord, encode_properties
from store.message_store import MessageStore
from store.opening import StoreOptions
from tests.support.waiting import wait_until

DATA = Path(__file__).parents[3] / "data" / "rocketmq-5.5.0-store.tar.gz"
SEGMENT = 1 << 16
HOST = Host("127.0.0.1", 10911)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["store", *map(str, arguments)])


def printed(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(DATA) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("*/commitlog")).parent


@pytest.fixture
def ours(tmp_path: Path) -> tuple[Path, list[int]]:
    store = MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=SEGMENT)
    )
    offsets = []
    for number in range(200):
        properties = encode_properties({"KEYS": f"k{number} all", "UNIQ_KEY": f"ID{number:04d}"})
        body = b"\xff\x00" if number == 7 else f"body {number}".encode() * 100
        record = PendingRecord(f"t{number % 2}", number % 4, body, properties, 1000, HOST.packed)
        offsets.append(store.append([record])[0].physical_offset)
    store.close()
    return tmp_path, offsets


def test_a_summary_of_ours(ours: tuple[Path, list[int]]) -> None:
    folder, offsets = ours
    found = printed("inspect", folder)
    assert (found["min_offset"], found["records"], found["broker"]) == (0, 200, "b")
    assert found["max_offset"] > offsets[-1]
    assert {name: (t["records"], t["queues"]) for name, t in found["topics"].items()} == {
        "t0": (100, 2),
        "t1": (100, 2),
    }
    assert sum(topic["bytes"] for topic in found["topics"].values()) == found["bytes"]
    assert [each["start"] for each in found["segments"]] == [
        n * SEGMENT for n in range(len(found["segments"]))
    ]
    assert "200 records" in run("inspect", folder).stdout


def test_records_by_offset_key_and_id(ours: tuple[Path, list[int]]) -> None:
    folder, offsets = ours
    (row,) = printed("inspect", folder, "--offset", offsets[5])
    assert (row["topic"], row["queue_id"], row["body"]) == ("t1", 1, "body 5" * 100)
    assert row["properties"]["KEYS"] == "k5 all"
    assert [r["physical_offset"] for r in printed("inspect", folder, "--key", "k5")] == [offsets[5]]
    assert len(printed("inspect", folder, "--key", "all")) == 20
    assert len(printed("inspect", folder, "--key", "all", "--limit", 500, "--topic", "t0")) == 100
    assert printed("inspect", folder, "--key", "al") == []
    (binary,) = printed("inspect", folder, "--message-id", "ID0007")
    assert (binary["body"], binary["body_hex"]) == (None, "ff00")
    assert printed("inspect", folder, "--message-id", binary["offset_msg_id"]) == [binary]
    assert "k5 all" in run("inspect", folder, "--offset", offsets[5]).stdout


def test_a_real_brokers_store(rocketmq: Path) -> None:
    found = printed("inspect", rocketmq)
    assert (found["records"], found["max_offset"]) == (295, 311_134)
    assert found["topics"]["bench"] == {"records": 204, "queues": 8, "bytes": 274_048}
    assert printed("verify", rocketmq) == {"records": 295, "bytes": 311_134, "bad": []}


def test_a_real_brokers_store_with_a_segment_made_ahead(rocketmq: Path, tmp_path: Path) -> None:
    shutil.copytree(rocketmq, tmp_path / "store")
    (first,) = (tmp_path / "store" / "commitlog").iterdir()
    (first.parent / f"{first.stat().st_size:020d}").write_bytes(bytes(first.stat().st_size))
    assert printed("verify", tmp_path / "store") == {"records": 295, "bytes": 311_134, "bad": []}


@pytest.mark.parametrize("as_json", [False, True])
def test_damage_is_named_and_the_exit_status_says_so(ours: tuple[Path, list[int]], as_json: bool) -> None:
    folder, offsets = ours
    with (folder / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(offsets[3] + 100)
        file.write(b"\xfe")
    result = run("verify", folder, *(["--json"] if as_json else []))
    assert result.exit_code == 1
    if as_json:
        found = json.loads(result.stdout)
        assert (found["records"], [each["offset"] for each in found["bad"]]) == (199, [offsets[3]])
        assert "CRC" in found["bad"][0]["reason"]
    else:
        log = folder / "commitlog" / f"{0:020d}"
        assert f"{offsets[3]} in {log}: the CRC does not match" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["inspect", "/does/not/exist"], 1, "/does/not/exist is not a folder"),
        (["verify", "EMPTY"], 1, "holds no commitlog"),
        (["inspect", "OURS", "--offset", "5"], 1, "no record begins at 5; the one before begins at 0"),
        (["inspect", "OURS", "--offset", "999999999"], 1, "999999999"),
        (["inspect", "OURS", "--key", "a", "--offset", "1"], 2, "exclude each other"),
        (["inspect", "OURS", "--topic", "nope"], 2, "--topic nope goes with --key or --message-id"),
        (["inspect", "OURS", "--topic", "t0", "--offset", "0"], 2, "--topic t0 goes with --key"),
        (["inspect", "OURS", "--key", "nobody"], 1, "no record with key nobody"),
    ],
)
def test_wrong_input_is_named(
    ours: tuple[Path, list[int]],
    tmp_path_factory: pytest.TempPathFactory,
    arguments: list[str],
    code: int,
    said: str,
) -> None:
    places = {"OURS": str(ours[0]), "EMPTY": str(tmp_path_factory.mktemp("empty"))}
    result = run(*[places.get(each, each) for each in arguments])
    assert result.exit_code == code
    assert said in result.stderr


def test_what_stands_behind_the_flushed_offset_after_a_crash_is_shown(tmp_path: Path) -> None:
    store = MessageStore.open(
        tmp_path / "running",
        StoreOptions(
            broker="b",
            cluster="c",
            store_host=HOST,
            segment_size=SEGMENT,
            flush_interval_ms=60_000,
            flush_thorough_ms=600_000,
        ),
    )
    record = PendingRecord("t", 0, bytes(1000), b"", 1000, HOST.packed)
    for _ in range(20):
        store.append([record])
    store.flush()
    end = store.max_offset
    assert store.flushed_offset == end
    more = [store.append([record])[0] for _ in range(100)]  # beyond the segment
    last_segment = more[-1].physical_offset // SEGMENT * SEGMENT
    index = tmp_path / "running" / "lakeindex" / f"{last_segment - SEGMENT:020d}"
    wait_until(index.exists)  # of a whole segment, which is flushed for it
    more += [store.append([record])[0] for _ in range(5)]
    assert more[-1].physical_offset // SEGMENT * SEGMENT == last_segment
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "running", crashed)
    known = int.from_bytes((crashed / "flushed").read_bytes()[:8], "big")
    behind = [each for each in more if each.physical_offset >= known]
    assert behind
    found = printed("inspect", crashed)
    assert (found["records"], found["max_offset"]) == (20 + len(more) - len(behind), known)
    assert found["unflushed"] == {
        "records": len(behind),
        "bytes": sum(each.size for each in behind),
        "max_offset": store.max_offset,
    }
    assert f"{len(behind):,} records of" in run("inspect", crashed).stdout
    store.close()
    last = more[-1]
    number = last.physical_offset // SEGMENT
    flip_byte(crashed / "commitlog" / f"{number * SEGMENT:020d}", last.physical_offset % SEGMENT + 100)
    found = printed("inspect", crashed)["unflushed"]
    assert (found["records"], found["max_offset"]) == (len(behind) - 1, last.physical_offset), (
        "as a start does"
    )
    again = MessageStore.open(
        crashed, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=SEGMENT)
    )
    assert again.max_offset == last.physical_offset
    again.close()
    assert printed("inspect", crashed)["unflushed"] == {
        "records": 0,
        "bytes": 0,
        "max_offset": again.max_offset,
    }


def test_an_offset_within_a_record_is_answered_with_where_records_begin(ours: tuple[Path, list[int]]) -> None:
    folder, offsets = ours
    for asked in (offsets[50] + 1, offsets[51] - 1):
        result = run("inspect", folder, "--offset", asked)
        assert result.exit_code == 1
        assert f"no record begins at {asked}; the one before begins at {offsets[50]}" in result.stderr
    behind_last = max(offset for offset in offsets if offset < SEGMENT)
    assert f"the one before begins at {behind_last}" in run("inspect", folder, "--offset", SEGMENT - 1).stderr


def test_an_offset_within_damage_is_answered_with_the_damage(ours: tuple[Path, list[int]]) -> None:
    folder, offsets = ours
    flip_byte(min((folder / "commitlog").iterdir()), offsets[20] + 4)  # its magic
    size = offsets[21] - offsets[20]
    result = run("inspect", folder, "--offset", offsets[20])
    assert (
        f"no record begins at {offsets[20]}; from {offsets[20]} on {size} bytes are damaged" in result.stderr
    )


def test_a_record_whose_crc_is_wrong_says_so(ours: tuple[Path, list[int]]) -> None:
    folder, offsets = ours
    flip_byte(min((folder / "commitlog").iterdir()), offsets[20] + 150)
    result = run("inspect", folder, "--offset", offsets[20])
    assert result.exit_code == 1
    assert "CRC" in result.stderr
    assert "no record begins" not in result.stderr


def test_a_summary_counts_the_places_without_a_record(ours: tuple[Path, list[int]]) -> None:
    folder, offsets = ours
    assert printed("inspect", folder)["damaged"] == 0
    flip_byte(min((folder / "commitlog").iterdir()), offsets[20] + 4)
    assert printed("inspect", folder)["damaged"] == 1
    assert "1 place without a record; run lakebroker store verify" in run("inspect", folder).stderr


@pytest.mark.parametrize("command", ["inspect", "verify", "import", "rebuild"])
def test_a_folder_of_several_stores_names_them(ours: tuple[Path, list[int]], command: str) -> None:
    folder = ours[0]
    inner = folder.rename(folder.with_name("inner"))
    outer = folder
    outer.mkdir()
    store = inner.rename(outer / "broker-a-0")
    said = run(command, outer)
    assert said.exit_code == 1
    assert (
        f"lakebroker: {outer} holds no commitlog, but stores are in it; give one of them: {store}\n"
        == said.stderr
    )


@pytest.mark.parametrize("command", ["inspect", "verify", "import", "rebuild"])
def test_a_path_that_is_not_a_folder_is_named_alike_by_all(tmp_path: Path, command: str) -> None:
    said = run(command, tmp_path / "nope")
    assert said.exit_code == 1
    assert (
        said.stderr == f"lakebroker: {tmp_path}/nope is not a folder; give the store's (storePathRootDir)\n"
    )


def test_one_of_a_thing_is_no_plural(tmp_path: Path) -> None:
    store = MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=SEGMENT)
    )
    store.append([PendingRecord("t", 0, b"body", encode_properties({"KEYS": "k"}), 1000, HOST.packed)])
    store.close()
    summary = run("inspect", tmp_path).stdout
    assert "in 1 segment, 1 record of " in summary
    assert run("verify", tmp_path).stdout.startswith("1 record, ")
    assert run("rebuild", tmp_path).stdout.startswith("1 unit of 1 queue, 1 entry in 1 index file\n")
