"""Which rows of the lake are erased: as the broker knows, and as the table says."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from broker_gateway.lake.erasures import LakeErasures
from broker_gateway.lake.reader import Lake
from store.log.erased import NOTHING, Offsets
from structured_streaming.errors import LakeError
from structured_streaming.tables import ERASURES
from tests.support.lakes.empty import empty_lake


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    empty_lake(str(tmp_path / "lake"))
    return tmp_path / "lake"


def told(lake: Path, broker: str, log_id: str, *offsets: int) -> None:
    """The table says so from here on."""
    rows = [
        {
            "broker": "",
            "log_id": "f" * 32,
            "physical_offset": 0,
            "ordinal": number,
            "erased_broker": broker,
            "erased_log_id": log_id,
            "erased_physical_offset": offset,
        }
        for number, offset in enumerate(offsets)
    ]
    schema = pa.schema([field.with_nullable(True) for field in ERASURES.schema])
    write_deltalake(str(lake / "erasures"), pa.Table.from_pylist(rows, schema), mode="append")


def test_both_count_and_the_table_is_followed(lake: Path) -> None:
    known: dict[str, Offsets] = {"a": np.array([5])}
    erasures = LakeErasures(Lake(str(lake)), "b", lambda log_id: known.get(log_id, NOTHING))

    def erased(log_id: str) -> list[int]:
        rows = erasures.now()
        return [offset for offset in range(20) if rows.has(log_id, offset)]

    assert (erased("a"), erased("c")) == ([5], [])
    told(lake, "b", "c", 9, 1)
    told(lake, "another", "c", 2)
    assert (erased("a"), erased("c")) == ([5], [1, 9])
    told(lake, "b", "a", 3)
    known["a"] = np.array([5, 19])
    before = erasures.now()
    assert (erased("a"), erased("c")) == ([3, 5, 19], [1, 9])
    told(lake, "b", "a", 4)
    assert not before.has("a", 4), "it is of an instant"


def test_a_lake_without_the_table_has_none(lake: Path) -> None:
    shutil.rmtree(lake / "erasures")
    rows = LakeErasures(Lake(str(lake)), "b", lambda log_id: np.array([7])).now()
    assert (rows.has("a", 7), rows.has("a", 8)) == (True, False)


def test_the_table_made_anew_is_read_anew(lake: Path) -> None:
    erasures = LakeErasures(Lake(str(lake)), "b")
    told(lake, "b", "a", 1)
    assert erasures.now().has("a", 1)
    shutil.rmtree(lake / "erasures")
    with pytest.raises(LakeError, match="erasures"):
        erasures.now()
    assert not erasures.now().has("a", 1)
    empty_lake(str(lake))
    told(lake, "b", "a", 2)
    rows = erasures.now()
    assert (rows.has("a", 1), rows.has("a", 2)) == (False, True)
