"""What becomes of each micro-batch in the driver: the manifest is committed, progress reported, silence told."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from store.log_source import LogSource
from structured_streaming.commit.report import BatchReport
from structured_streaming.commit.sink import Sink
from structured_streaming.errors import LakeError
from structured_streaming.reput_watch import BROKER, NOBODY, Watch
from structured_streaming.source.access import Access
from structured_streaming.source.logs import open_log
from structured_streaming.staging.unread import without_unread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLOSE_S = 60.0
"""What a commit under way may take once the job is to end."""


class BatchCommits:
    """The function that `foreachBatch` calls; a batch that comes after `close` is left for the next start."""

    def __init__(
        self,
        sink: Sink,
        access: Access,
        on_batch: Callable[[BatchReport], None],
        watch: Watch = NOBODY,
    ) -> None:
        self._sink = sink
        self._access = access
        self._on_batch = on_batch
        self._watch = watch
        self._logs: dict[str, LogSource] = {}
        self._silent: set[str] = set()
        self._committing = threading.Lock()
        self._closed = False

    def __call__(self, batch: DataFrame, _: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        with self._committing:
            if not self._closed:
                self._commit(rows)

    def close(self) -> None:
        """Waits for the commit under way and lets no other begin."""
        self._closed = True
        if self._committing.acquire(timeout=CLOSE_S):
            self._committing.release()
        for log in self._logs.values():
            log.close()

    def _commit(self, manifest: list[dict[str, Any]]) -> None:
        kept, reasons = without_unread(manifest)
        for target, reason in reasons.items():
            self._watch.away(BROKER)
            if target not in self._silent:
                sys.stderr.write(f"lakebroker: {reason}; the batch goes on without the rest of its log\n")
        self._silent |= reasons.keys()
        report = self._sink.commit(kept)
        if report is None:
            return
        for (target, _broker, log_id), offset in report.ends.items():
            if target not in reasons:
                self._silent.discard(target)
                self._report(target, log_id, offset)
        self._on_batch(report)

    def _report(self, target: str, log_id: str, offset: int) -> None:
        """A hint only: the gateway looks into the lake itself."""
        try:
            if target not in self._logs:
                self._logs[target] = open_log(target, self._access)
            self._logs[target].report(log_id, offset)
        except LakeError as error:
            sys.stderr.write(f"lakebroker: progress not reported: {error}\n")
