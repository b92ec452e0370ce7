"""What a table's log in a folder tells of our commits: read without Spark, up to what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from structured_streaming.catalog.marks import BATCH, START, Mark, history_in
from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import LOG, commit_name
from structured_streaming.storage.local import LocalFolder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    made = tmp_path / LOG
    made.mkdir()
    return made


def commit(log: Path, version: int, said: Any) -> None:
    """A commit with an added file before what it says of itself, whose path has the word."""
    actions: list[Any] = [{"add": {"path": '"commitInfo"'}}, {"commitInfo": said}]
    (log / commit_name(version)).write_text("\n".join(json.dumps(each) for each in actions))


def marked(mark: Mark, rows: str | None) -> dict[str, Any]:
    metrics = {} if rows is None else {"operationMetrics": {"numOutputRows": rows}}
    return {"operation": "WRITE", "userMetadata": mark.text, **metrics}


def test_commits_are_told_from_the_newest_on(log: Path) -> None:
    commit(log, 0, {"operation": "CREATE TABLE"})
    commit(log, 1, marked(Mark(START, 5, "a"), None))
    commit(log, 2, marked(Mark(BATCH, 6, "a"), "17"))
    commit(log, 3, {"operation": "OPTIMIZE", "userMetadata": "of somebody else"})
    for other in (
        f"{2:020}.crc",
        f"{2:020}.checkpoint.parquet",
        f"{0:020}.{2:020}.compacted.json",
        "_last_checkpoint",
        "notes.json",
    ):
        (log / other).touch()
    found = history_in(LocalFolder(log.parent))
    assert found.commits == [
        (3, None),
        (2, Mark(BATCH, 6, "a", 2, 17)),
        (1, Mark(START, 5, "a", 1, -1)),
        (0, None),
    ]
    assert found.whole
    newest = history_in(LocalFolder(log.parent), 2)
    assert newest.commits == found.commits[:2]
    assert not newest.whole


@pytest.mark.parametrize(
    "said", [None, "text", ["userMetadata"], {"userMetadata": 7}, {"userMetadata": "[]"}]
)
def test_what_says_something_else_has_no_mark(log: Path, said: Any) -> None:
    commit(log, 0, said)
    assert history_in(LocalFolder(log.parent)).commits == [(0, None)]


def test_a_commit_without_a_word_of_itself_has_no_mark(log: Path) -> None:
    (log / commit_name(0)).write_text('{"add": {"path": "a"}}\n')
    assert history_in(LocalFolder(log.parent)).commits == [(0, None)]


def test_a_log_that_cannot_be_read_is_named(log: Path) -> None:
    (log / commit_name(0)).write_text('{"commitInfo": {')
    with pytest.raises(LakeError, match=rf"{LOG} cannot be read: "):
        history_in(LocalFolder(log.parent))
    with pytest.raises(LakeError, match=r"nowhere/_delta_log cannot be read: .*No such file"):
        history_in(LocalFolder(log.parent / "nowhere"))
