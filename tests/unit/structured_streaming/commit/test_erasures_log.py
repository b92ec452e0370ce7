"""Rows of `erasures` that a command adds: each commit's stand behind all before it, whoever commits beside."""

from __future__ import annotations

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from structured_streaming.commit.erasures_log import Erasures, add_erased
from structured_streaming.commit.upgrade import prepare_lake
from structured_streaming.commit.upkeep_log import add_to_upkeep, read_upkeep
from structured_streaming.erased import Erased
from structured_streaming.errors import LakeError
from structured_streaming.storage.location import lake_folder
from structured_streaming.tables import ERASURES
from structured_streaming.upkeep import RETIRED, row

LOG = ("b", "l")


def test_commands_at_once_leave_rows_in_an_order(tmp_path: Path) -> None:
    prepare_lake(str(tmp_path))
    lake = lake_folder(str(tmp_path))

    def add(number: int) -> None:
        add_erased(lake, Erased({LOG: np.array([number, 1000 + number])}), datetime.now(UTC))

    with ThreadPoolExecutor(4) as some:
        list(some.map(add, range(12)))
    erasures = Erasures(lake)
    assert erasures.next_by_hand() == 12
    settled = erasures.settling({LOG: 5000}, {})
    assert settled == {"b/l": 5000, "/": 12}
    assert len(erasures.every()) == 24
    assert not len(erasures.unsettled(settled))
    add(50)
    erasures.follow()
    assert erasures.unsettled(settled).of(LOG).tolist() == [50, 1050]
    assert erasures.settling({LOG: 5000}, settled) == {"/": 13}
    assert (
        len(list((tmp_path / ERASURES.name).glob("*.parquet"))) == 13
    )  # none of a commit that came too late


def test_a_file_with_rows_that_are_marked_as_deleted_is_refused(tmp_path: Path) -> None:
    prepare_lake(str(tmp_path))
    folder = lake_folder(str(tmp_path))
    add_erased(folder, Erased({LOG: np.array([7])}), datetime.now(UTC))
    assert Erasures(folder).every().table()["physical_offset"].to_pylist() == [7]
    log = tmp_path / "erasures" / "_delta_log"
    newest = max(log.glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["deletionVector"] = {"storageType": "i", "pathOrInlineDv": "x", "cardinality": 1}
    newest.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(LakeError, match=r"marked as deleted"):
        Erasures(folder).every()


def test_a_row_that_names_no_record_is_none(tmp_path: Path) -> None:
    prepare_lake(str(tmp_path))
    folder = lake_folder(str(tmp_path))
    add_erased(folder, Erased({LOG: np.array([7])}), datetime.now(UTC))
    table = str(tmp_path / ERASURES.name)
    rows = DeltaTable(table).to_pyarrow_table()
    for name in ("erased_physical_offset", "erased_broker", "physical_offset"):
        at = rows.schema.get_field_index(name)
        write_deltalake(
            table,
            rows.set_column(at, rows.schema.field(at), pa.nulls(1, rows.schema.field(at).type)),
            mode="append",
        )
    assert Erasures(folder).every().table()["physical_offset"].to_pylist() == [7]
    add_erased(folder, Erased({LOG: np.array([8])}), datetime.now(UTC))
    assert Erasures(folder).every().table()["physical_offset"].to_pylist() == [7, 8]


@pytest.mark.parametrize("gone", ["change_timestamp", "kind"])
def test_a_decision_that_is_none_is_named(tmp_path: Path, gone: str) -> None:
    prepare_lake(str(tmp_path))
    folder = lake_folder(str(tmp_path))
    row_of_now = row(RETIRED, broker="b")
    add_to_upkeep(folder, row_of_now)
    at = row_of_now.schema.get_field_index(gone)
    field = row_of_now.schema.field(at)
    write_deltalake(
        str(tmp_path / "upkeep"), row_of_now.set_column(at, field, pa.nulls(1, field.type)), mode="append"
    )
    with contextlib.suppress(LakeError):
        assert read_upkeep(folder).retired.keys() == {"b"}
