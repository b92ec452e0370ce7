"""Which files become one: the bound on files holds, and what is large enough is left alone."""

from __future__ import annotations

import json
import random

import pytest

from structured_streaming.commit.snapshot import DataFile
from structured_streaming.maintenance.plan import WINDOW, allowed, plan, window_of

TARGET = 1000


def file(number: int, size: int, kind: str = "KEYS", rows: int = 1) -> DataFile:
    ends = {"key_type": kind, "store_timestamp": f"2026-01-01T00:00:{number:06}Z"}
    stated = {"numRecords": rows, "minValues": ends, "maxValues": ends}
    return DataFile(f"{kind}-{number}", size, json.dumps(stated), False)


def maintained(files: list[DataFile], shrinks: float) -> tuple[list[DataFile], int]:
    """The files at the end, and the bytes that were rewritten; a file is smaller than those that it was made of."""
    written, number = 0, 10_000
    while groups := plan(files, TARGET):
        for group in groups:
            assert len(group) > 1
            assert len({each.path.partition("-")[0] for each in group}) == 1, "kinds of keys are mixed"
            assert all(each.size < TARGET / 2 for each in group)
            files = [each for each in files if each not in group]
            number += 1
            size = sum(each.size for each in group)
            assert size <= TARGET
            files.append(file(number, max(int(size * shrinks), 1), group[0].path.partition("-")[0]))
            written += size
    return files, written


@pytest.mark.parametrize("seed", range(50))
def test_no_more_files_than_twice_what_the_size_gives(seed: int) -> None:
    rng = random.Random(seed)
    files = [
        file(n, rng.choice([rng.randint(1, 50), rng.randint(1, 1500)])) for n in range(rng.randint(1, 300))
    ]
    left, _ = maintained(files, rng.choice([1.0, 0.6, 0.2]))
    assert len(left) <= allowed(left, TARGET)


def test_files_that_follow_each_other_in_time_become_one() -> None:
    files = [file(n, 300) for n in range(6)]
    random.Random(1).shuffle(files)
    groups = sorted(sorted(each.path for each in group) for group in plan(files, TARGET))
    assert groups == [["KEYS-0", "KEYS-1", "KEYS-2"], ["KEYS-3", "KEYS-4", "KEYS-5"]]


def test_a_file_that_grows_is_not_rewritten_with_every_small_one() -> None:
    """A table gets a file of 10 bytes each time; its last file is rewritten now and then only."""
    files: list[DataFile] = []
    written = 0
    for n in range(49):
        files, its = maintained([*files, file(n, 10)], 1.0)
        assert len(files) <= allowed(files, TARGET)
        written += its
    assert written < 0.7 * sum(10 * n for n in range(49)), "all of it, each time"


def test_what_takes_too_much_memory_to_sort_stays_apart() -> None:
    assert plan([file(n, 100, rows=5_000_000) for n in range(3)], TARGET) == []


def test_files_without_statistics_are_put_together_too() -> None:
    files = [DataFile(str(n), 10, "", False) for n in range(3)]
    assert plan(files, TARGET) == [files]


def ranged(number: int, least: str, greatest: str, label: str = "part") -> DataFile:
    its = file(number, 800)
    stated = json.loads(its.stats)
    stated["minValues"]["key"], stated["maxValues"]["key"] = least, greatest
    return DataFile(f"{label}-{number}", its.size, json.dumps(stated), False)


def test_a_window_is_of_the_oldest_files_that_overlap_and_were_not_sorted_together_yet() -> None:
    sorted_before = [ranged(number, "a", "z", "sorted") for number in range(WINDOW)]
    apart = [ranged(100 + number, f"b{number:02}", f"b{number:02}z") for number in range(WINDOW)]
    overlapping = [ranged(200 + number, "a", "z") for number in range(WINDOW)]
    few = [ranged(300 + number, "a", "z") for number in range(WINDOW - 1)]
    files = [*few, *overlapping, *apart, *sorted_before]
    random.Random(1).shuffle(files)
    assert sorted(window_of(files, TARGET, "key")) == sorted(overlapping)
    assert window_of([each for each in files if each not in overlapping], TARGET, "key") == []
    apart_too = [file(400 + number, 800) for number in range(WINDOW)]
    assert len(window_of(apart_too, TARGET, "key")) == WINDOW, "what is not stated may overlap"
