"""The side file with what is erased: written whole, read by path, damage found."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from lakebroker_testing.logs import open_store, pending
from store.errors import StoreDamagedError
from store.log.erased import ERASED_FILE, Erased, read_erased, version_of, write_erased
from store.log_reader import LogReader

OFFSETS = np.array([0, 77, 1 << 40], np.int64)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_erased(tmp_path, ["a"]).tolist() == []
    for offsets in (OFFSETS, OFFSETS[1:], OFFSETS[:0]):
        write_erased(tmp_path, "a", offsets)
        assert read_erased(tmp_path, ["b", "a"]).tolist() == offsets.tolist()
    assert [path.name for path in tmp_path.iterdir()] == [ERASED_FILE]
    assert (tmp_path / ERASED_FILE).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("at", [0, 9, 20, 45, 53, 60, -1])
def test_a_damaged_byte_is_found(tmp_path: Path, at: int) -> None:
    write_erased(tmp_path, "a" * 32, OFFSETS)
    data = bytearray((tmp_path / ERASED_FILE).read_bytes())
    data[at] ^= 0x10
    (tmp_path / ERASED_FILE).write_bytes(data)
    with pytest.raises(StoreDamagedError, match=ERASED_FILE):
        read_erased(tmp_path, ["a" * 32])


@pytest.mark.parametrize("kept", [0, 8, 30, 55, 72])
def test_a_file_that_is_cut_is_found(tmp_path: Path, kept: int) -> None:
    write_erased(tmp_path, "a", OFFSETS)
    data = (tmp_path / ERASED_FILE).read_bytes()
    (tmp_path / ERASED_FILE).write_bytes(data[:kept])
    with pytest.raises(StoreDamagedError, match="start the store's gateway"):
        read_erased(tmp_path, ["a"])


def test_another_log_s_is_refused(tmp_path: Path) -> None:
    write_erased(tmp_path, "a", OFFSETS)
    with pytest.raises(StoreDamagedError, match="log a, which is not the store's"):
        read_erased(tmp_path, ["b"])


def test_versions_differ_with_what_is_erased() -> None:
    lists = [OFFSETS, OFFSETS[1:], OFFSETS + 1, OFFSETS[:0]]
    assert len({version_of(each) for each in lists}) == 4
    assert version_of(OFFSETS[:0]) == 0
    assert all(0 <= version_of(each) < 1 << 64 for each in lists)


def test_a_reader_by_path_follows_the_store(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store")) as store, closing(LogReader(tmp_path / "store")) as reader:
        store.append([pending()])
        assert reader.erased().tolist() == []
        store.erased.hold(OFFSETS[:1])
        store.publish_erased()
        assert reader.erased().tolist() == [0]
        store.begin_log()  # the file names a former log of the store
        reader.follow()
        assert reader.erased().tolist() == [0]
        assert LogReader(tmp_path / "store").erased().tolist() == [0]
        store.publish_erased()
        assert reader.erased().tolist() == [0]


def test_a_real_broker_s_store_has_nothing_erased(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store")) as store:
        store.append([pending()])
        shutil.copytree(tmp_path / "store" / "commitlog", tmp_path / "real" / "commitlog")
    write_erased(tmp_path / "real", "a", OFFSETS)
    with closing(LogReader(tmp_path / "real", broker="b", log_id="x")) as reader:
        assert reader.erased().tolist() == []


def test_what_is_added_and_forgotten_leaves_what_is_held() -> None:
    draw = np.random.default_rng(27)
    erased, held = Erased(), Erased()
    for number in range(60):
        some = np.unique(draw.integers(0, 300, draw.integers(0, 12)))
        erased.add(some)
        below = number * 3
        erased.forget(below)
        left = np.union1d(held.offsets, some)
        held.hold(left[left >= below])
        assert erased.offsets.tolist() == held.offsets.tolist()
        assert (erased.places, erased.version) == (held.places, held.version)
        assert erased.among(some).tolist() == [each in held.places for each in some.tolist()]
