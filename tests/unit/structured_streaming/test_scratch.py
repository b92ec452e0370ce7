"""Temporary folders of processes that were killed go when another process makes its own; all others stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from structured_streaming.scratch import MARK, SPARK, SQL, remove_left, remove_scratch, scratch_folder

HOLDER = "import sys; from structured_streaming.scratch import *; print(scratch_folder(*sys.argv[1:]), flush=True); sys.stdin.read()"


def other(place: Path, prefix: str) -> tuple[subprocess.Popen[str], Path]:
    """Another process, with a folder that has something in it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(place), prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    (folder / "in").mkdir()
    (folder / "in" / "rows").write_bytes(b"x" * 1000)
    return process, folder


@pytest.mark.parametrize("prefix", [SPARK, SQL])
def test_what_a_killed_process_left_goes_and_what_living_ones_have_stays(tmp_path: Path, prefix: str) -> None:
    (killed, left), (living, held) = other(tmp_path, prefix), other(tmp_path, prefix)
    own = scratch_folder(str(tmp_path), prefix)
    killed.kill()
    killed.wait()
    assert left.exists()
    another = scratch_folder(str(tmp_path), SQL)
    assert not left.exists()
    assert (held / "in" / "rows").exists()
    assert Path(own).exists()
    living.communicate("")
    assert not held.exists(), "it went with its process"
    remove_scratch(own)
    remove_scratch(another)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_such_folder_stays(tmp_path: Path) -> None:
    named = tmp_path / f"{SQL}abcdefgh"
    named.mkdir()  # of somebody else, or of a version that had no marks
    marked = tmp_path / "mine"
    marked.mkdir()
    (marked / MARK).touch()
    (tmp_path / f"{SQL}12345678").symlink_to(marked)
    (tmp_path / f"{SPARK}12345678.log").touch()
    before = sorted(os.listdir(tmp_path))
    remove_left(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == before
    assert (marked / MARK).exists()
    remove_left(str(tmp_path / "nowhere"))
