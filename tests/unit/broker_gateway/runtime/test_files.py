"""Files written whole stay what they were: links, modes, owners."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker_gateway.runtime.files import write_whole


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_a_link_points_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    real, link = tmp_path / "etc" / "real.conf", tmp_path / "link.conf"
    real.write_text("old")
    link.symlink_to(real)
    write_whole(link, "new")
    assert link.is_symlink()
    assert real.read_text() == link.read_text() == "new"
    assert (tmp_path / "etc" / "real.conf.bak").read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["etc", "link.conf"]


@pytest.mark.parametrize("kept", [0o600, 0o640, 0o444])
def test_the_mode_stays(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.conf"
    path.write_text("old")
    path.chmod(kept)
    for text in ("one", "two"):
        write_whole(path, text)
        assert (path.read_text(), mode(path)) == (text, kept)


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "folder" / "new", "x")
    finally:
        os.umask(before)
    assert mode(tmp_path / "folder" / "new") == 0o640


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_owner_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("old")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    write_whole(path, "new")
    found = path.stat()
    assert (found.st_uid, found.st_gid, mode(path)) == (12345, 23456, 0o640)


def test_what_a_crash_left_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("old")
    (tmp_path / "elsewhere").write_text("other")
    (tmp_path / "a.conf.tmp").symlink_to(tmp_path / "elsewhere")
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert (tmp_path / "elsewhere").read_text() == "other"
