"""Compiled code that is kept: found again, noticed when anything it was made of changes, and never relied on."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from broker_gateway.api.grpc.kernels import receive_walk, send_walk
from store import columns
from store.errors import StoreError
from store.kernels import crc32, encode, fields, walk
from store.kernels.code_folders import CODE_FOLDERS, STORE_FOLDER, CodeFolders
from store.kernels.compiled import COMPILING, compiled, stamp

SIZES = {"row": 8}
KERNEL = """
from changing_layout import COLUMN, TABLE
from store.kernels.compiled import compiled

@compiled
def pick(row):
    return row[COLUMN] + TABLE[0]
"""


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a kernel's sources, whose constants are in another file, and its code."""
    folder = tmp_path_factory.mktemp("kernel")
    sources = folder / "sources"
    sources.mkdir()
    (sources / "changing_kernel.py").write_text(KERNEL)
    layout(sources, column=0, first=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(sources))
        patch.setattr(sys, "dont_write_bytecode", True)
        with patch.context() as chosen:
            chosen.setattr(CODE_FOLDERS, "_chosen", folder / "code")
            assert picked() == 10
        yield folder
    for name in ("changing_kernel", "changing_layout"):
        sys.modules.pop(name, None)


@pytest.fixture
def kept(once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The one folder for code, with that of a process before."""
    shutil.copytree(once / "code", tmp_path / "code")
    monkeypatch.setattr(CODE_FOLDERS, "_chosen", tmp_path / "code")
    yield tmp_path / "code"
    layout(once / "sources", column=0, first=0)


def layout(sources: Path, *, column: int, first: int) -> None:
    (sources / "changing_layout.py").write_text(
        f"import numpy as np\nCOLUMN = {column}\nTABLE = np.array([{first}])\n"
    )


def loaded() -> ModuleType:
    """The kernel as a new process would see it."""
    for name in ("changing_kernel", "changing_layout"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("changing_kernel")


def picked() -> int:
    return int(loaded().pick(np.array([10, 20])))


def test_code_is_found_by_the_next_process(kept: Path) -> None:
    before, compiled = COMPILING.loaded, COMPILING.compiled
    assert picked() == 10
    assert (COMPILING.loaded, COMPILING.compiled) == (before + 1, compiled)
    assert kept.stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in kept.iterdir()] == [0o600]


def test_constants_of_another_file_count(once: Path, kept: Path) -> None:
    layout(once / "sources", column=1, first=0)
    assert picked() == 20, "a column that moved"
    layout(once / "sources", column=1, first=5)
    assert picked() == 25, "an array that changed"
    assert len(list(kept.iterdir())) == 1, "what nobody finds any more is removed"


def test_damaged_code_is_made_anew(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path,) = kept.iterdir()
    data = bytearray(path.read_bytes())
    for damaged in (bytes(data[:100]), bytes(data[:-1]) + bytes([data[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        assert picked() == 10
        assert "is damaged and is made anew" in caplog.text
        assert path.read_bytes() == data or len(path.read_bytes()) > 100
        caplog.clear()


def test_without_a_folder_each_process_compiles(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(CODE_FOLDERS, "_chosen", Path("/dev/null/code"))
    monkeypatch.setattr(COMPILING, "_told", False)
    before = COMPILING.compiled
    assert [picked(), picked()] == [10, 10]
    assert COMPILING.compiled == before + 2
    (said,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "/dev/null/code" in said
    assert "lakeCompiledCodePath" in said


def test_a_disk_that_fills_harms_nothing(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(CODE_FOLDERS, "_chosen", kept.with_name("empty"))
    assert picked() == 10
    assert "No space left" in caplog.text
    assert list(kept.with_name("empty").iterdir()) == []


def test_code_of_another_user_is_not_run(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CODE_FOLDERS, "_checked", {})
    if os.geteuid() == 0:
        os.chown(kept, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    before = COMPILING.loaded
    assert picked() == 10
    assert COMPILING.loaded == before
    assert CODE_FOLDERS.readable() == []


def test_what_others_could_write_is_removed(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept.chmod(0o770)
    monkeypatch.setattr(CODE_FOLDERS, "_checked", {})
    before = COMPILING.loaded
    assert picked() == 10
    assert COMPILING.loaded == before, "compiled again"
    assert "its code was removed" in caplog.text
    assert kept.stat().st_mode & 0o777 == 0o700


def test_code_below_what_others_may_write_to_is_not_run(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They could put a folder of their own in place of one that was checked."""
    caplog.set_level(logging.INFO)
    parent = kept.parent / "parent"
    folder, link = parent / "between" / "code", kept.parent / "link"
    folder.mkdir(parents=True, mode=0o700)
    link.symlink_to(parent / "between")
    for mode, expected in ((0o755, True), (0o777, False), (0o775, False), (0o1777, True)):
        parent.chmod(mode)
        for each in (folder, link / "code"):
            folders = CodeFolders()
            folders.use(kept.parent / "store", each)
            assert folders.writable() == folders.readable() == ([each] if expected else []), oct(mode)
    assert f"others may write to {parent} above it (mode 777)" in caplog.text


def test_only_files_of_this_user_or_root_are_run(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = kept.iterdir()
    before = COMPILING.loaded
    path.rename(kept.parent / "elsewhere")
    path.symlink_to(kept.parent / "elsewhere")
    assert picked() == 10
    assert COMPILING.loaded == before, "a link was followed"
    assert not path.is_symlink(), "compiled again"
    if os.geteuid() == 0:
        os.chown(path, 4242, 4242)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert picked() == 10
    assert COMPILING.loaded == before, "a file of another user"


def test_which_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKEBROKER_lakeCompiledCodePath", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = CodeFolders()
    user = tmp_path / "cache" / "lakebroker" / "compiled"
    assert folders.wanted() == [user]
    folders.read(tmp_path / "read")
    assert folders.writable() == [user], "a reader makes no folder in a store"
    assert not (tmp_path / "read").exists()
    folders.use(tmp_path / "store")
    assert folders.writable() == [tmp_path / "store" / STORE_FOLDER, user]
    monkeypatch.setenv("LAKEBROKER_lakeCompiledCodePath", str(tmp_path / "named"))
    assert folders.wanted() == [tmp_path / "named"]
    folders.use(tmp_path / "store", tmp_path / "chosen")
    assert folders.wanted() == [tmp_path / "chosen"]


def test_every_kernel_can_be_kept() -> None:
    kernels = [
        each
        for module in (walk, encode, fields, crc32, send_walk, receive_walk)
        for each in vars(module).values()
    ]
    stamps = [stamp(each) for each in kernels if hasattr(each, "py_func")]
    assert len(stamps) > 30
    assert all(len(each) == 64 for each in stamps)


def test_a_column_that_moved_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = stamp(encode.encode)
    monkeypatch.setattr(encode, "BODY_START", encode.BODY_START + 1)
    assert stamp(encode.encode) != before


def test_a_value_that_cannot_be_compared_is_refused() -> None:
    def width(row: np.ndarray) -> int:
        return int(row[0]) * SIZES["row"]

    with pytest.raises(TypeError, match="uses SIZES, a dict: make it a number, text, an array or a tuple"):
        stamp(compiled(width))


def test_what_a_module_of_ours_holds_is_imported_by_name() -> None:
    """Nobody would see that it changed."""

    def body_start(row: np.ndarray) -> int:
        return int(row[columns.BODY_START])

    with pytest.raises(TypeError, match="uses columns, a module: import what it needs of that by name"):
        stamp(compiled(body_start))


def test_code_that_writes_other_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = encode.encode

    def wrong(out: np.ndarray, *arguments: object) -> int:
        end = int(right(out, *arguments))
        out[40] ^= 1
        return end

    encode.warm()
    monkeypatch.setattr(encode, "encode", wrong)
    with pytest.raises(StoreError, match="other bytes than the plain one"):
        encode.warm()
