"""Which folders are taken as a store, and that nothing changes in the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import ForeignFolderError, StoreDamagedError
from store.message_store import MessageStore
from store.record import Host
from store.segment import list_segments


def open_store(root: Path, commit_log_paths: tuple[Path, ...] = (), broker: str = "b") -> MessageStore:
    return MessageStore.open(
        root,
        broker=broker,
        cluster="c",
        store_host=Host("127.0.0.1", 10911),
        segment_size=1 << 20,
        commit_log_paths=commit_log_paths,
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
