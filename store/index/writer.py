"""Writes the runs of the queue index to files, each once its records are on disk."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from store.index.live_run import LiveRun
from store.index.queue_index import QueueIndex
from store.index.run_file import Key
from store.index.write_run import write_run
from store.log.flush import Flusher
from store.log.segment import make_folder

log = logging.getLogger(__name__)


class IndexWriter:
    """One thread that writes what `index` hands over. A run that cannot be written stays in memory, and the
    next start scans that part of the log."""

    def __init__(self, folder: Path, log_id: str, index: QueueIndex) -> None:
        make_folder(folder)
        for left in folder.glob("*.tmp"):
            left.unlink()
        self._folder = folder
        self.log_id = log_id
        """Of the log that the runs written from now on are of."""
        self._index = index
        self._flusher: Flusher | None = None
        self._early: list[tuple[LiveRun, Mapping[Key, int]]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
        index.on_run(self._cut)

    def start(self, flusher: Flusher) -> None:
        """Begins writing; runs that the recovery made come first."""
        self._flusher = flusher
        for run, next_offsets in self._early:
            self._cut(run, next_offsets)
        self._early.clear()

    def end(self) -> None:
        """Ends the thread; what it was given is written."""
        self._thread.shutdown(wait=True)

    def close(self) -> None:
        """Writes the newest run too, so that the next start scans nothing. The log must be flushed."""
        self.end()
        run, next_offsets = self._index.live_run()
        if len(run):
            self._write(run, next_offsets, last=True)

    def _cut(self, run: LiveRun, next_offsets: Mapping[Key, int]) -> None:
        if self._flusher is None:
            self._early.append((run, next_offsets))
            return

        def flushed(error: BaseException | None) -> None:
            if error is None:
                self._thread.submit(self._write, run, next_offsets)

        self._flusher.wait(run.end, flushed)

    def _write(self, run: LiveRun, next_offsets: Mapping[Key, int], last: bool = False) -> None:
        try:
            written = write_run(run, self._folder, self.log_id, next_offsets)
            if not last and not self._index.replace(run, written):
                written.delete()
        except OSError as error:
            log.error("the queue index of offset %d could not be written: %s", run.start, error)
