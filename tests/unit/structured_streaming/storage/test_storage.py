"""A lake's files: whole or not there, nobody's overwritten, nothing left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from structured_streaming.storage.local import SCRATCH_PREFIX, LocalFolder, temporary_folder
from structured_streaming.storage.location import absolute, local_folder


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


def test_a_file_that_took_anothers_place_has_another_stamp(folder: LocalFolder) -> None:
    assert folder.stamp("a") is None
    folder.put_if_absent("a", b"one")
    before = folder.stamp("a")
    assert before == folder.stamp("a")
    os.rename(folder.target("a"), folder.target("b"))
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
    os.utime(folder.target(SCRATCH_PREFIX + "old"), (0, 0))
    folder.remove_scratch(3600)
    assert folder.names() == [SCRATCH_PREFIX + "young"]


def test_files_that_are_gone_are_passed_over(folder: LocalFolder) -> None:
    folder.make_durable(["gone"])
    folder.remove("gone")
    with pytest.raises(FileNotFoundError):
        folder.finish("gone")


def test_a_temporary_folder_goes() -> None:
    with temporary_folder() as made:
        made.child("t").make()
    assert not made.exists()


def test_what_a_location_names(tmp_path: Path) -> None:
    found = local_folder(f"file://{tmp_path}/a%20b")
    assert found is not None
    assert found.path == tmp_path / "a b"
    assert local_folder("s3://bucket/lake") is None
    assert absolute("s3://bucket/lake") == "s3://bucket/lake"
    assert absolute(".") == os.getcwd()
