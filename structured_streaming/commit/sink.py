"""What the reput asks of a sink, and the steps of a batch in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from structured_streaming.commit.report import BatchReport

AfterStep = Callable[[str], None]
"""Called after each step of a sink, with its name: one of these, or the table's that was committed."""
NUMBERED, STARTED, SET_BACK = "numbered", "started", "set back"
"""Of a start by Spark's writer: others are shut out of the progress, of every table; what was unfinished is gone."""
STAGED, DURABLE = "staged", "durable"
"""Files of a batch wait for their commit; by Spark's writer: all that the progress row names is on disk."""


def no_step(_step: str) -> None:
    """Nobody asked."""


class Sink(Protocol):
    """Turns the manifest of a micro-batch into commits; the progress row last."""

    def commit(self, manifest: list[dict[str, Any]]) -> BatchReport | None:
        """None when the batch held nothing. Raises ForeignWriterError, LakeError."""
        ...
