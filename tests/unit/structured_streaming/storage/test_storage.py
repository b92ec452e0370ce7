"""A lake's files: whole or not there, nobody's overwritten, nothing left."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from structured_streaming.storage.local import SCRATCH_PREFIX, LocalFolder, temporary_folder
from structured_streaming.storage.location import absolute, named_folder


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path)


def test_the_first_to_put_a_file_has_it(folder: LocalFolder) -> None:
    folder.put_if_absent("a", b"one")
    with pytest.raises(FileExistsError):
        folder.put_if_absent("a", b"two")
    assert (folder.read("a"), folder.names()) == (b"one", ["a"])
    assert folder.has("a")
    with pytest.raises(FileNotFoundError):
        folder.read("b")


def test_a_file_takes_the_place_of_another_whole(
    folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.replace("a", b"one")
    folder.replace("a", b"two")
    assert (folder.read("a"), folder.names()) == (b"two", ["a"])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.replace("a", b"three")
    assert (folder.read("a"), folder.names()) == (b"two", ["a"])


def test_a_folder_goes_with_all_that_is_in_it(folder: LocalFolder) -> None:
    inner = folder.child("t").child("u")
    inner.make()
    inner.put_if_absent("a", b"")
    folder.put_if_absent("b", b"")
    folder.child("t").remove_all()
    assert (folder.names(), folder.child("t").exists()) == (["b"], False)
    folder.child("t").remove_all()


def test_a_file_that_took_anothers_place_has_another_stamp(folder: LocalFolder) -> None:
    assert folder.stamp("a") is None
    folder.put_if_absent("a", b"one")
    before = folder.stamp("a")
    assert before == folder.stamp("a")
    os.rename(folder.readable("a"), folder.readable("b"))
    folder.put_if_absent("a", b"one")
    assert folder.stamp("a") != before


def test_a_folder_is_made_whole_or_not_at_all(folder: LocalFolder) -> None:
    def half(uri: str) -> None:
        Path(uri).mkdir()
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        folder.create("t", half)
    assert folder.names() == []

    def made(uri: str) -> None:
        Path(uri, "_delta_log").mkdir(parents=True)
        Path(uri, "_delta_log", "0").write_bytes(b"x")

    folder.create("t", made)
    folder.child("t").put_if_absent("mine", b"")
    folder.create("t", made)
    assert sorted(folder.child("t").names()) == ["_delta_log", "mine"], "another process was faster"
    assert folder.names() == ["t"]


def test_results_of_a_copy_take_their_place_and_the_inputs_stay(folder: LocalFolder) -> None:
    log = folder.child("t").child("log")
    log.make()
    for name in ("1", "2", "hint"):
        log.put_if_absent(name, name.encode())
    seen = []

    def make(uri: str) -> None:
        copy = Path(uri, "log")
        seen.extend(sorted(os.listdir(copy)))
        (copy / "hint").write_bytes(b"new")
        (copy / "result").write_bytes(b"12")

    log.derive(["1", "hint"], make, ("result", "hint"))
    assert seen == ["1", "hint"]
    assert {name: log.read(name) for name in log.names()} == {
        "1": b"1",
        "2": b"2",
        "hint": b"new",
        "result": b"12",
    }
    assert folder.names() == ["t"]
    with pytest.raises(FileNotFoundError):
        log.derive(["1"], lambda uri: None, ("missing",))
    assert folder.names() == ["t"]


def test_only_old_scratch_is_removed(folder: LocalFolder) -> None:
    for name in ("old", "young"):
        folder.child(SCRATCH_PREFIX + name).make()
    os.utime(folder.readable(SCRATCH_PREFIX + "old"), (0, 0))
    folder.remove_scratch(3600)
    assert folder.names() == [SCRATCH_PREFIX + "young"]


def test_files_that_are_gone_are_passed_over(folder: LocalFolder) -> None:
    folder.make_durable(["gone"])
    folder.remove("gone")
    with pytest.raises(FileNotFoundError):
        folder.open_new("gone").finish()


def test_a_file_system_without_hard_links_is_named(
    folder: LocalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="no hard links"):
        folder.put_if_absent("a", b"")
    assert folder.names() == []


def test_scratch_goes(folder: LocalFolder) -> None:
    with folder.scratch() as made:
        made.put_if_absent("a", b"")
    assert folder.names() == []


def test_files_are_read_up_to_the_first_that_is_missing(folder: LocalFolder) -> None:
    for name in ("0", "1", "3"):
        folder.put_if_absent(name, name.encode())
    assert list(folder.read_each("0123")) == [b"0", b"1"]


def test_a_temporary_folder_goes() -> None:
    with temporary_folder() as made:
        made.child("t").make()
    assert not made.exists()


def test_what_a_location_names(tmp_path: Path) -> None:
    assert named_folder(f"file://{tmp_path}/a%20b").uri == str(tmp_path / "a b")
    found = named_folder("s3a://bucket//lake/")
    assert (found.uri, found.spark_uri) == ("s3://bucket/lake", "s3a://bucket/lake")
    assert found.child("t").parent.uri == found.uri
    assert absolute("s3://bucket/lake") == "s3://bucket/lake"
    assert absolute(".") == os.getcwd()
