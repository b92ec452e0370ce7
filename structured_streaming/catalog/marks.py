"""What our commits say of themselves in a table's history, and what that tells of the table.

A commit by Spark's writer carries one application transaction, `SPARK_APPLICATION`, whose version is a number of the
lake's counter. A number that a table has had is passed over by Delta without a word. So each commit has a mark too, in the
user metadata of its history, by which its writer finds out that the commit is its own, and at which version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from structured_streaming.errors import LakeError
from structured_streaming.storage.delta_names import LOG, commit_name, version_of
from structured_streaming.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH, START, CLEARED = "batch", "start", "cleared"
"""Kinds: rows of a batch; a writer that begins; rows removed that no batch had finished."""
_KEY = "lakebroker"
RECENT = 20
"""Commits in which a mark is looked for first: maintenance may have made some of them."""
KNOWN = 200
"""How many commits are searched for batches that were left unfinished."""


class Mark(NamedTuple):
    """A commit of ours: its `number` of the lake's counter, who made it; `version` and `rows` as the table's history has them.

    `rows` are -1 where it does not say.
    """

    kind: str
    number: int
    writer: str
    version: int = -1
    rows: int = -1

    @property
    def text(self) -> str:
        """For the commit's user metadata."""
        return json.dumps({_KEY: {"kind": self.kind, "number": self.number, "writer": self.writer}})


class History(NamedTuple):
    """Of a table's newest commits, the newest first: version, and mark where there is one."""

    commits: list[tuple[int, Mark | None]]

    @property
    def marks(self) -> list[Mark]:
        return [mark for _, mark in self.commits if mark is not None]

    @property
    def whole(self) -> bool:
        """Whether nothing is missing at its beginning."""
        return any(version == 0 for version, _ in self.commits)

    def find(self, number: int) -> Mark | None:
        """The newest mark of a number."""
        return next((mark for mark in self.marks if mark.number == number), None)

    def settles(self) -> bool:
        """Whether `unfinished` needs no older commits."""
        return self.whole or any(mark.kind in (BATCH, CLEARED) for mark in self.marks)

    def unfinished(self, last_batch: int) -> int | None:
        """Rows that batches behind `last_batch`, the last that was finished, added at most; None where nobody knows."""
        added = 0
        for mark in self.marks:
            if mark.kind == CLEARED or (mark.kind == BATCH and mark.number <= last_batch):
                return added
            if mark.kind == BATCH:
                if mark.rows < 0:
                    return None
                added += mark.rows
        others = any(mark is None and version > 0 for version, mark in self.commits)
        return added if self.whole and not others else None


def history(session: SparkSession, table: str, limit: int | None = RECENT) -> History:
    """Of a table, named as in SQL; all that there is where `limit` is None."""
    found = session.sql(f"DESCRIBE HISTORY {table}" + (f" LIMIT {limit}" if limit else ""))
    rows = [row.asDict() for row in found.select("version", "userMetadata", "operationMetrics").collect()]
    return History([(row["version"], _mark(row["version"], row)) for row in rows])


def history_in(folder: Folder, limit: int = RECENT) -> History:
    """As `history`, of a table in a folder, whose commits are there alone: what Spark would start a job for is read from its log.
    Raises LakeError.
    """
    log = folder.child(LOG)
    try:
        versions = [(version_of(name), name) for name in log.names()]
        commits_there = [at for at, name in versions if at is not None and name == commit_name(at)]
        newest = sorted(commits_there, reverse=True)[:limit]
        contents = log.read_each(map(commit_name, newest))  # up to one that is cleaned up meanwhile
        commits = zip(newest, contents, strict=False)
        return History([(version, _mark(version, _commit_info(content))) for version, content in commits])
    except (OSError, ValueError, TypeError) as error:
        raise LakeError(f"{log} cannot be read: {error}") from error


def _commit_info(content: bytes) -> Any:
    """What a commit says of itself."""
    actions = (json.loads(line) for line in content.splitlines() if b'"commitInfo"' in line)
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _mark(version: int, said: Any) -> Mark | None:
    try:
        given = json.loads(said.get("userMetadata") or "null")[_KEY]
        rows = int((said.get("operationMetrics") or {}).get("numOutputRows", -1))
        return Mark(str(given["kind"]), int(given["number"]), str(given["writer"]), version, rows)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # a commit of somebody else
