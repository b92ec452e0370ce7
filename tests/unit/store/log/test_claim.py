"""Which folders are taken as a store, and that nothing changes in the others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from store.errors import ForeignFolderError, StoreDamagedError
from store.log.record import Host, PendingRecord
from store.log.recovery import lock_folder
from store.log.segment import list_segments
from store.message_store import MessageStore
from store.opening import StoreOptions


def open_store(root: Path, commit_log_paths: tuple[Path, ...] = (), broker: str = "b") -> MessageStore:
    return MessageStore.open(
        root,
        StoreOptions(
            broker=broker,
            cluster="c",
            store_host=Host("127.0.0.1", 10911),
            segment_size=1 << 20,
            commit_log_paths=commit_log_paths,
        ),
    )


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder of all users, with somebody's files."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        (folder / name).write_text("mine")
    return folder


def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(shared: Path) -> None:
    with pytest.raises(ForeignFolderError) as refused:
        open_store(shared)
    assert str(refused.value) == (
        f"{shared} holds other files (a.txt, b.txt, c.txt, ...); give an empty folder or a store (storePathRootDir)"
    )
    assert shared.stat().st_mode & 0o777 == 0o777
    assert sorted(path.name for path in shared.iterdir()) == ["a.txt", "b.txt", "c.txt", "d.txt"]


def test_a_folder_of_the_log_with_other_files_is_refused(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(ForeignFolderError, match="storePathCommitLog"):
        open_store(tmp_path / "store", (shared,))
    assert not (tmp_path / "store").exists()
    assert shared.stat().st_mode & 0o777 == 0o777


@pytest.mark.parametrize(
    ("brokers", "remedy"),
    [
        (
            {"broker-a-0": "broker-a-0", "broker-a-1": "broker-a-1"},
            "start 2 brokers with --processes 2 --set brokerName=broker-a, or one with --store {}/broker-a-0 "
            "--set brokerName=broker-a-0",
        ),
        (
            {"broker-a-1": "broker-a-1", "broker-a-3": "broker-a-3"},
            "start each by itself, such as --store {}/broker-a-1 --set brokerName=broker-a-1",
        ),
        (
            {"broker-a-0": "orders", "broker-a-1": "broker-a-1"},
            "start each by itself, such as --store {}/broker-a-0 --set brokerName=orders",
        ),
        ({"broker-a-0": "broker-a-0"}, "start that with --store {}/broker-a-0 --set brokerName=broker-a-0"),
    ],
)
def test_a_folder_of_several_brokers_stores_is_refused_with_how_to_start_them(
    tmp_path: Path, brokers: dict[str, str], remedy: str
) -> None:
    for name, broker in brokers.items():
        open_store(tmp_path / name, broker=broker).close()
    (tmp_path / "processes").mkdir()
    with pytest.raises(ForeignFolderError) as refused:
        open_store(tmp_path)
    assert str(refused.value) == (
        f"{tmp_path} holds other files ({', '.join(brokers)}, processes); "
        + (
            "the store of a broker is in it: "
            if len(brokers) == 1
            else "stores of single brokers are in it: "
        )
        + remedy.format(tmp_path)
    )


@pytest.mark.parametrize("name", ["lock", "lost+found", "lakebroker.json.tmp"])
def test_what_a_failed_start_or_a_new_disk_leaves_is_no_hindrance(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    open_store(tmp_path).close()


@pytest.mark.parametrize(
    "name", ["commitlog", "consumequeue", "config/topics.json", "config/consumerOffset.json"]
)
def test_the_store_of_a_real_broker_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / "rocksdb").mkdir()
    open_store(tmp_path).close()
    open_store(tmp_path).close()


def test_a_store_may_have_its_log_beside_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for _ in range(2):
        open_store(tmp_path, (tmp_path / "disk",)).close()
    (tmp_path / "gateway.log").touch()
    open_store(tmp_path, (tmp_path / "disk",)).close()


def test_the_first_change_of_modes_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    store = open_store(tmp_path)
    store.close()
    assert store.recovered.closed.first == (tmp_path, 0o777, 0o700)


def test_a_log_with_segments_of_another_size_names_the_option(tmp_path: Path) -> None:
    segment = tmp_path / "commitlog" / f"{0:020d}"
    segment.parent.mkdir()
    segment.write_bytes(bytes(1 << 16) + b"x" + bytes((1 << 16) - 1))
    with pytest.raises(StoreDamagedError) as refused:
        open_store(tmp_path)
    assert str(refused.value) == (
        f"segment {segment} has 131072 bytes, expected 1048576; set mappedFileSizeCommitLog=131072, or restore the file"
    )
    assert not (tmp_path / "lakebroker.json").exists(), "the option counts at the next start"


def test_a_folder_that_a_store_knows_may_have_other_files_beside_no_segments(tmp_path: Path) -> None:
    """Retention deleted the segments of one of two."""
    folders = tmp_path / "one", tmp_path / "two"
    open_store(tmp_path / "store", folders).close()
    (folders[1] / "README").touch()
    assert not list_segments(folders[1])
    open_store(tmp_path / "store", folders).close()


def test_a_new_folder_of_the_log_of_a_store_may_not(tmp_path: Path, shared: Path) -> None:
    open_store(tmp_path / "store").close()
    with pytest.raises(ForeignFolderError, match="storePathCommitLog"):
        open_store(tmp_path / "store", (tmp_path / "store" / "commitlog", shared))


def pending() -> PendingRecord:
    return PendingRecord("t", 0, b"body", b"", 1, Host("127.0.0.1", 1).packed)


def written(root: Path, *folders: Path) -> str:
    """Makes a store, or writes to it; its log id."""
    store = open_store(root, folders)
    store.append([pending()])
    store.close()
    return store.log_id


def as_before_marks(*folders: Path) -> None:
    for folder in folders:
        shutil.rmtree(folder / ".lakebroker")


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("other", ["new", "made before"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_folder_of_another_stores_log_is_refused(
    tmp_path: Path, running: bool, other: str, empty: bool
) -> None:
    log, first, second = tmp_path / "log", tmp_path / "f1", tmp_path / "f2"
    if other == "made before":
        written(second)
    store = open_store(first, (log,))
    if not empty:
        store.append([pending()])
    if not running:
        store.close()
    with pytest.raises(ForeignFolderError) as refused:
        open_store(second, (log,))
    assert str(refused.value) == (
        f"{log} is a folder of another store's log, of {first} (broker b); give this store one of its own "
        f"(storePathCommitLog). If that store is gone for good, remove {log}/.lakebroker"
    )
    assert second.exists() is (other == "made before")
    store.close()
    written(first, log)
    if other == "made before":
        written(second)


def test_a_copy_of_a_store_does_not_open_a_log_that_is_in_use(tmp_path: Path) -> None:
    """It has the log's id."""
    log, first, copy = tmp_path / "log", tmp_path / "f1", tmp_path / "f2"
    written(first, log)
    shutil.copytree(first, copy)
    store = open_store(first, (log,))
    code = (
        "import sys\nfrom pathlib import Path\nfrom tests.unit.store.log.test_claim import open_store\n"
        "open_store(Path(sys.argv[1]), (Path(sys.argv[2]),)).close()"
    )
    command = [sys.executable, "-c", code, str(copy), str(log)]
    tried = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[4])
    assert (
        f"StoreLockedError: another process has {log}, a folder of the log; stop it, or give this store a folder of its "
        "own (storePathCommitLog)"
    ) in tried.stderr
    assert not (copy / "abort").exists()
    store.close()
    assert subprocess.run(command, cwd=Path(__file__).parents[4]).returncode == 0


def test_a_folder_in_another_store_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "f1")
    for log in (tmp_path / "f1" / "commitlog", tmp_path / "f1" / "more", tmp_path / "f1"):
        with pytest.raises(ForeignFolderError) as refused:
            open_store(tmp_path / "f2", (log,))
        assert str(refused.value) == (
            f"{log} is in another store, {tmp_path}/f1; give this store a folder of its own (storePathCommitLog)"
        )
    assert not (tmp_path / "f2").exists()


def test_a_link_to_a_folder_counts_as_the_folder(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    for name in ("f1", "f2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "commitlog").symlink_to(log)
    written(tmp_path / "f1")
    written(tmp_path / "f1", tmp_path / "f1" / "commitlog")
    with pytest.raises(ForeignFolderError, match="of another store's log"):
        open_store(tmp_path / "f2")


def test_segments_without_a_mark_are_taken_by_a_store_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    written(tmp_path / "f1", log)
    as_before_marks(log)
    with pytest.raises(ForeignFolderError) as refused:
        open_store(tmp_path / "f2", (log,))
    assert str(refused.value) == (
        f"{log} holds a log, and {tmp_path}/f2 no store: give the storePathRootDir of that log, or an empty folder "
        f"(storePathCommitLog); if nothing but the log is left, make the folder {tmp_path}/f2/commitlog"
    )
    assert not (tmp_path / "f2").exists()
    (tmp_path / "f2" / "commitlog").mkdir(parents=True)
    written(tmp_path / "f2", log)


def test_a_store_that_joins_no_segments_leaves_them_unmarked(tmp_path: Path) -> None:
    """Those of a store of an earlier version, which does not run."""
    log = tmp_path / "log"
    written(tmp_path / "f1", log)
    as_before_marks(log)
    written(tmp_path / "f2")
    with pytest.raises(StoreDamagedError, match="comes the segment of offset 0"):
        open_store(tmp_path / "f2", (log,))
    written(tmp_path / "f2")
    written(tmp_path / "f1", log)


def test_a_store_of_an_earlier_version_marks_its_folders(tmp_path: Path) -> None:
    logs = tmp_path / "one", tmp_path / "two"
    log_id = written(tmp_path / "f1", *logs)
    as_before_marks(*logs)
    assert written(tmp_path / "f1", *logs) == log_id
    for log in logs:
        assert json.loads((log / ".lakebroker" / "owner.json").read_text()) == {
            "log_id": log_id,
            "broker": "b",
            "store": str(tmp_path / "f1"),
        }


def test_the_store_of_a_real_broker_with_its_log_elsewhere_is_taken_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    written(tmp_path / "made", log)
    as_before_marks(log)
    (tmp_path / "f1" / "config").mkdir(parents=True)
    (tmp_path / "f1" / "config" / "topics.json").write_text("{}")
    written(tmp_path / "f1", log)
    with pytest.raises(ForeignFolderError, match=f"of {tmp_path}/f1 "):
        open_store(tmp_path / "made", (log,))


def test_folders_in_the_root_have_no_mark(tmp_path: Path) -> None:
    written(tmp_path / "store", tmp_path / "store" / "commitlog", tmp_path / "store" / "more" / "log")
    assert not list((tmp_path / "store").rglob(".lakebroker"))


def test_a_store_that_was_moved_keeps_its_folders(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log_id = written(tmp_path / "f1", log)
    (tmp_path / "f1").rename(tmp_path / "f2")
    assert written(tmp_path / "f2", log) == log_id


def test_a_store_without_its_identity_is_told_of_the_mark(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log_id = written(tmp_path / "f1", log)
    (tmp_path / "f1" / "lakebroker.json").unlink()
    with pytest.raises(ForeignFolderError) as refused:
        open_store(tmp_path / "f1", (log,))
    assert str(refused.value) == (
        f"{log} is a folder of the log of this store, whose {tmp_path}/f1/lakebroker.json is missing; restore that, or "
        f"remove {log}/.lakebroker: the log gets another id then"
    )
    as_before_marks(log)
    assert written(tmp_path / "f1", log) != log_id


def test_a_mark_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    log = tmp_path / "log"
    written(tmp_path / "f1", log)
    mark = log / ".lakebroker" / "owner.json"
    mark.write_text("{")
    with pytest.raises(
        StoreDamagedError, match=f"{mark} cannot be read .*; if the log is this store's, remove"
    ):
        open_store(tmp_path / "f1", (log,))
    mark.unlink()
    written(tmp_path / "f1", log)


def test_several_brokers_that_are_started_keep_a_single_one_out(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    locked = lock_folder(tmp_path / "processes", "another has it")
    with pytest.raises(ForeignFolderError, match=r"several brokers run in .* stop them, or give another"):
        open_store(tmp_path)
    os.close(locked)
    open_store(tmp_path).close()


@pytest.mark.parametrize(
    ("left", "taken"),
    [((), True), (("peers.json", "peers.json.7.tmp", "b-0.json"), True), (("mine",), False)],
)
def test_what_a_killed_supervisor_leaves_keeps_no_broker_out(
    tmp_path: Path, left: tuple[str, ...], taken: bool
) -> None:
    (tmp_path / "processes").mkdir()
    for name in left:
        (tmp_path / "processes" / name).touch()
    if taken:
        open_store(tmp_path).close()
    else:
        with pytest.raises(ForeignFolderError, match="processes"):
            open_store(tmp_path)
