"""Tables that other people's hands emptied are named, with what to do, to who asks for them; what we remove ourselves is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from structured_streaming.commit.table_log import TableLog
from structured_streaming.commit.taken_away import taken_away
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import SPARK_APPLICATION
from structured_streaming.storage.local import LocalFolder
from structured_streaming.union.followed import FollowedLake
from tests.support.lakes.maintained import ReputLake


def delete(uri: str) -> None:
    DeltaTable(uri).delete()


def overwrite(uri: str) -> None:
    there = DeltaTable(uri).to_pyarrow_table()
    write_deltalake(uri, there.slice(0, 0), mode="overwrite")


@pytest.fixture
def lake(tmp_path: Path) -> ReputLake:
    made = ReputLake(tmp_path)
    made.fill(2)
    return made


class Asking:
    """An engine over a lake, and what it says of tables."""

    def __init__(self, lake: ReputLake) -> None:
        self.told: list[str] = []
        self.engine = EmbeddedEngine.open(str(lake.lake), tell=self.told.append)
        self.told.clear()  # how old the tables are

    def count(self, table: str) -> int:
        rows = self.engine.query(f"SELECT count(*) AS n FROM {table}").read_all()
        return int(rows["n"][0].as_py())

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()


@pytest.mark.parametrize("empty", [delete, overwrite])
def test_a_table_that_others_emptied_is_named(lake: ReputLake, empty: Callable[[str], None]) -> None:
    messages = f"{lake.lake}/messages"
    with Asking(lake) as open_before:
        before = open_before.count("messages")
        assert before > 0
        empty(messages)
        version = DeltaTable(messages).version()
        lake.fill(1)
        with Asking(lake) as later:
            for asking in (open_before, later):
                assert asking.count("consume_queue") > 0
                assert asking.told == []
                for _ in range(2):
                    assert asking.count("messages") < before
                (said,) = asking.told
                assert f"{messages} lacks rows: version {version} (" in said
                assert f"RESTORE TABLE to version {version - 1}" in said
    DeltaTable(messages).restore(version - 1)
    with Asking(lake) as restored:
        assert restored.count("messages") == before
        assert restored.told == []


def test_a_table_that_is_away_at_the_first_look_is_named_at_the_next(lake: ReputLake) -> None:
    names = ("consume_queue", "messages")
    for name in names:
        delete(f"{lake.lake}/{name}")
    followed = FollowedLake(LocalFolder(lake.lake))
    followed.newest(names)
    table, away = lake.lake / "messages", lake.lake / "away"
    table.rename(away)
    looks = followed.emptied(names)
    assert "consume_queue lacks rows" in next(looks)
    with pytest.raises(LakeError, match=f"table {table}: "):
        next(looks)
    away.rename(table)
    (said,) = followed.emptied(names)
    assert "messages lacks rows" in said


def test_what_is_no_emptying_is_not_named(lake: ReputLake) -> None:
    """What we remove ourselves, rows that somebody deletes among others, and what Spark's writer repairs."""
    folder = LocalFolder(lake.lake)
    index = TableLog(folder.child("message_index"))
    files = files_of(f"{lake.lake}/message_index")
    index.rewrite(files, [], deletes=True)
    DeltaTable(f"{lake.lake}/messages").delete("queue_id = 0")
    TableLog(folder.child("consume_queue")).append([], {SPARK_APPLICATION: 1})
    delete(f"{lake.lake}/consume_queue")
    with Asking(lake) as asking:
        assert [asking.count(table) > 0 for table in ("message_index", "messages", "consume_queue")] == [
            False,
            True,
            False,
        ]
        assert asking.told == []


@pytest.mark.parametrize(
    ("actions", "version"),
    [
        ([{"commitInfo": None}, {"remove": None}], None),
        ([{"remove": []}], None),
        ([{"remove": {}}, {"add": {"stats": "[1]"}}], None),
        ([{"remove": {}}, {"add": {"stats": 7}}], None),
        ([{"remove": {}}, {"add": {}}], None),
        ([{"remove": {"dataChange": False}}], None),
        ([{"remove": {}}, {"add": {"stats": '{"numRecords":0}'}}], 3),
        ([{"commitInfo": {"operation": 5, "engineInfo": {}}}, {"remove": {}}], 3),
    ],
)
def test_commits_of_any_kind(actions: list[dict[str, Any]], version: int | None) -> None:
    found = taken_away(actions, 3, None)
    assert (None if found is None else found.version) == version


def files_of(uri: str) -> list[tuple[str, int]]:
    return [(path.rpartition("/")[2], 1) for path in DeltaTable(uri).file_uris()]
