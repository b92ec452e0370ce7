"""A lake of an earlier version is upgraded in place, whoever crashes on the way; one of a later version is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from structured_streaming.commit import upgrade
from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.upgrade import prepare_lake
from structured_streaming.errors import LakeError
from structured_streaming.lake import PROPERTIES, create_tables, open_lake
from structured_streaming.staging.table_file import write_file
from structured_streaming.storage.local import LocalFolder
from structured_streaming.tables import MESSAGES, SCHEMA_PROPERTY, SCHEMA_VERSION, TABLES
from structured_streaming.typed.declaration import DECLARED

NEW_TABLES = ("topics", "consumer_groups")
"""Since version 2."""
NEW_COLUMNS = ("lite_topic", "priority")


def old_schema() -> pa.Schema:
    return pa.schema([field for field in MESSAGES.schema if field.name not in NEW_COLUMNS])


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Of version 1, with a message."""
    for table in TABLES.values():
        if table.name not in NEW_TABLES:
            DeltaTable.create(
                tmp_path / table.name,
                schema=old_schema() if table is MESSAGES else table.schema,
                name=table.name,
                description=table.comment,
                configuration={SCHEMA_PROPERTY: "1", "delta.checkpointInterval": "100"},
                raise_if_key_not_exists=False,
            )
    write_deltalake(str(tmp_path / "messages"), messages(old_schema(), 1), mode="append")
    return tmp_path


def messages(schema: pa.Schema, offset: int) -> pa.Table:
    row = {"broker": "b", "log_id": "l", "physical_offset": offset, "topic": "t"}
    return pa.Table.from_pylist([row], schema)


def version(lake: Path, table: str) -> str | None:
    return DeltaTable(str(lake / table)).metadata().configuration.get(SCHEMA_PROPERTY)


@pytest.mark.parametrize("from_checkpoint", [False, True])
def test_columns_and_tables_are_added_and_rows_stay(lake: Path, from_checkpoint: bool) -> None:
    if from_checkpoint:
        for name in TABLES.keys() - set(NEW_TABLES):
            DeltaTable(str(lake / name)).create_checkpoint()
    prepare_lake(str(lake))
    prepare_lake(str(lake))  # nothing is left to do
    assert {version(lake, name) for name in TABLES} == {str(SCHEMA_VERSION)}
    assert DeltaTable(str(lake / "messages")).version() == 2
    new = write_file(LocalFolder(lake), MESSAGES, messages(MESSAGES.schema, 2))
    TableLog(LocalFolder(lake / "messages"), MESSAGES.schema).append([new._asdict()], {"b/l": 3})
    table = DeltaTable(str(lake / "messages"))
    assert [field.name for field in table.schema().fields] == MESSAGES.schema.names
    metadata = table.metadata()
    assert (metadata.name, metadata.description) == (MESSAGES.name, MESSAGES.comment)
    assert metadata.configuration["delta.checkpointInterval"] == "100"
    rows = sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: row["physical_offset"])
    assert [(row["physical_offset"], row["priority"]) for row in rows] == [(1, None), (2, None)]
    assert open_lake(str(lake)).uri == str(lake)


def test_properties_that_are_new_are_added_and_those_that_are_there_stay(tmp_path: Path) -> None:
    create_tables(str(tmp_path))
    table = DeltaTable(str(tmp_path / "messages"))
    mine = {"delta.logRetentionDuration": "interval 9 days", "mine": "1"}
    table.alter.set_table_properties(mine, raise_if_not_exists=False)
    log = TableLog(LocalFolder(tmp_path / "messages"))
    without = {
        name: text
        for name, text in log.metadata["configuration"].items()
        if name != "delta.deletedFileRetentionDuration"
    }
    log.alter({**log.metadata, "configuration": without})
    typed = {"delta.logRetentionDuration": "interval 1 days", DECLARED: "{}"}
    for name, properties in {"typed_ours": typed, "typed_theirs": mine, "catalogs": {}}.items():
        DeltaTable.create(
            tmp_path / name, MESSAGES.schema, configuration=properties, raise_if_key_not_exists=False
        )
    prepare_lake(str(tmp_path))
    prepare_lake(str(tmp_path))  # nothing is left to do
    table = DeltaTable(str(tmp_path / "messages"))
    assert table.metadata().configuration == {**PROPERTIES, **mine}
    assert table.version() == 3
    found = {name: DeltaTable(tmp_path / name) for name in ("typed_ours", "typed_theirs", "catalogs")}
    assert {name: each.version() for name, each in found.items()} == {
        "typed_ours": 1,
        "typed_theirs": 0,
        "catalogs": 0,
    }
    assert found["typed_ours"].metadata().configuration == {**PROPERTIES, **typed}


def test_a_table_of_a_catalog_keeps_the_properties_that_it_has(tmp_path: Path) -> None:
    create_tables(str(tmp_path))
    log = TableLog(LocalFolder(tmp_path / "messages"))
    of_catalog = {
        SCHEMA_PROPERTY: str(SCHEMA_VERSION),
        "delta.enableDeletionVectors": "false",
        "delta.logRetentionDuration": "interval 9 days",
    }
    log.alter({**log.metadata, "configuration": of_catalog})
    prepare_lake(str(tmp_path))
    assert DeltaTable(str(tmp_path / "messages")).metadata().configuration == of_catalog


def test_configurations_of_version_2_get_their_other_fields(tmp_path: Path) -> None:
    for table in TABLES.values():
        schema = pa.schema([field for field in table.schema if field.name != "other_fields"])
        folder = tmp_path / table.name
        DeltaTable.create(
            folder, schema=schema, configuration={SCHEMA_PROPERTY: "2"}, raise_if_key_not_exists=False
        )
        if table.name in NEW_TABLES:
            row = {"broker": "b", "log_id": "l", "physical_offset": 1, "ordinal": 0, "deleted": True}
            write_deltalake(str(folder), pa.Table.from_pylist([row], schema), mode="append")
    prepare_lake(str(tmp_path))
    for name in NEW_TABLES:
        found = DeltaTable(str(tmp_path / name))
        assert [field.name for field in found.schema().fields] == TABLES[name].schema.names
        assert [row["other_fields"] for row in found.to_pyarrow_table().to_pylist()] == [None]
    assert {version(tmp_path, name) for name in TABLES} == {str(SCHEMA_VERSION)}


def test_a_crash_between_tables_is_caught_up(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, done = TableLog.alter, list[str]()

    def alter(log: TableLog, metadata: dict[str, object]) -> None:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(str(metadata["name"]))
        real(log, metadata)

    with monkeypatch.context() as patched:
        patched.setattr(TableLog, "alter", alter)
        with pytest.raises(KeyboardInterrupt):
            prepare_lake(str(lake))
    assert version(lake, "reput_progress") == "1"
    with pytest.raises(LakeError, match=r"of an earlier version; `lakebroker init --lake`"):
        open_lake(str(lake))
    prepare_lake(str(lake))
    assert {version(lake, name) for name in TABLES} == {str(SCHEMA_VERSION)}


def test_two_at_once_upgrade_once(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = upgrade.upgraded

    def meanwhile(metadata: object, wanted: pa.Schema) -> dict[str, object]:
        with monkeypatch.context() as patched:
            patched.setattr(upgrade, "upgraded", real)
            prepare_lake(str(lake))
        return real(metadata, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(upgrade, "upgraded", meanwhile)
    prepare_lake(str(lake))
    assert {DeltaTable(str(lake / name)).version() for name in TABLES.keys() - {*NEW_TABLES, "messages"}} == {
        1
    }
    assert DeltaTable(str(lake / "messages")).version() == 2


@pytest.mark.parametrize(
    "do", [prepare_lake, open_lake, lambda lake: TableLog(LocalFolder(Path(lake, "reput_progress")))]
)
@pytest.mark.parametrize(
    ("text", "words"),
    [("5", "schema version 5, this lakebroker knows versions up to 4"), ("x", "which is no version")],
)
def test_a_later_version_is_refused(lake: Path, do: Callable[[str], object], text: str, words: str) -> None:
    prepare_lake(str(lake))
    DeltaTable(str(lake / "reput_progress")).alter.set_table_properties(
        {SCHEMA_PROPERTY: text}, raise_if_not_exists=False
    )
    with pytest.raises(LakeError, match=words):
        do(str(lake))


def altered(lake: Path, **changes: object) -> None:
    """Changes the column `tag` of `messages` by hand."""
    log = TableLog(LocalFolder(lake / "messages"))
    schema = json.loads(log.metadata["schemaString"])
    field = next(each for each in schema["fields"] if each["name"] == "tag")
    schema["fields"].append(field | changes) if "name" in changes else field.update(changes)
    log.alter({**log.metadata, "schemaString": json.dumps(schema)})


def test_a_column_more_goes_on_and_is_kept(lake: Path) -> None:
    altered(lake, name="mine")
    prepare_lake(str(lake))
    names = [field.name for field in DeltaTable(str(lake / "messages")).schema().fields]
    assert names == [*MESSAGES.schema.names, "mine"]
    assert TableLog(LocalFolder(lake / "messages"), MESSAGES.schema).version == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "mine", "nullable": False}, "a column mine NOT NULL"),
        ({"type": "binary"}, "column tag .* is of type binary, this version writes string"),
    ],
)
def test_a_column_that_does_not_fit_is_named(lake: Path, changes: dict[str, object], words: str) -> None:
    prepare_lake(str(lake))
    altered(lake, **changes)
    with pytest.raises(LakeError, match=words):
        TableLog(LocalFolder(lake / "messages"), MESSAGES.schema)
