"""What the reput asks of a sink."""

from __future__ import annotations

from typing import Any, Protocol

from structured_streaming.commit.report import BatchReport


class Sink(Protocol):
    """Turns the manifest of a micro-batch into commits; the progress row last."""

    def commit(self, manifest: list[dict[str, Any]]) -> BatchReport | None:
        """None when the batch held nothing. Raises ForeignWriterError, LakeError."""
        ...
