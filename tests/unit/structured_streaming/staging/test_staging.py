"""Staged files of a range are named in its manifest, or gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebroker_testing.logs import blank, encoded, pending
from structured_streaming.errors import UnreachableError
from structured_streaming.source.log_range import LogRange
from structured_streaming.staging import stage as staging
from tests.support.lakes.empty import empty_lake


@pytest.mark.parametrize("bit", range(32))
def test_behind_a_blank_whose_size_is_damaged_the_next_segment_is_read(tmp_path: Path, bit: int) -> None:
    lake = empty_lake(str(tmp_path / "lake")).path
    segment = 4096
    first, starts = encoded(pending(KEYS=f"k{n}") for n in range(10))
    second, _ = encoded((pending(KEYS=f"k{n}") for n in range(10)), segment)
    data = bytearray(first + blank(segment - len(first)) + second)
    data[len(first) + bit // 8] ^= 1 << bit % 8
    part = LogRange("store:-", "b", "l", 0, len(data), len(data), segment_size=segment)
    chunks = [(0, bytes(data[:segment])), (segment, bytes(data[segment:]))]
    (manifest,) = list(staging.stage(str(lake), part, iter(chunks)))
    rows = {each["table"]: each["rows"] for each in manifest.to_pylist()}
    assert (rows[""], rows["quarantine"]) == (2 * len(starts), 1)


def test_of_a_range_that_cannot_be_read_to_its_end_no_file_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "GROUP_BYTES", 1)
    lake = empty_lake(str(tmp_path / "lake")).path
    data, starts = encoded(pending(KEYS=f"k{n}") for n in range(20))
    written: list[int] = []

    def chunks() -> Iterator[tuple[int, bytes]]:
        yield 0, data[: starts[10]]
        yield starts[10], data[starts[10] :]
        written.append(len(list(lake.rglob("*.parquet"))))
        raise UnreachableError("the broker does not answer")

    part = LogRange("store:-", "b", "l", 0, 2 * len(data), 2 * len(data))
    with pytest.raises(UnreachableError):
        list(staging.stage(str(lake), part, chunks()))
    assert written[0] > 0
    assert [path.name for path in lake.rglob("*.parquet")] == []
