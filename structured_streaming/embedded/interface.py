"""What an engine answers, in this process (`engine.py`) or in one of its own (`apart.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from structured_streaming.embedded.running import Watch

Parameters = Sequence[object] | Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or view; fields of `schema` have their comment as metadata `comment`. `key`: columns that tell its rows apart, none
    of a view."""

    name: str
    kind: Literal["table", "view"]
    comment: str
    schema: pa.Schema
    key: tuple[str, ...] = ()


class SqlEngine(Protocol):
    """Calls raise LakeError, ReadOnlyError; from several threads."""

    def query(
        self, statement: str, parameters: Parameters = (), watch: Watch | None = None
    ) -> pa.RecordBatchReader:
        """The rows of one statement; `watch` can cancel it."""

    def describe(self, statement: str, watch: Watch | None = None) -> pa.Schema:
        """The schema of its rows."""

    def relations(self, watch: Watch | None = None) -> list[Relation]:
        """Tables, then views; they are waited for until `watch` is cancelled, where they come from another process."""
