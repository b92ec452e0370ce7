"""Makes a damaged file of the queue index anew from the part of the log that it covers, while the store is in use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from store.errors import StoreDamagedError
from store.index.file_run import FileRun
from store.index.live_run import LiveRun
from store.index.queue_index import NO_LIMIT, QueueIndex
from store.index.run_file import Directory, Key
from store.index.write_run import write_run
from store.log.recovery import RecoveryReport, scan_flushed
from store.log.segment import Segment


class Remake:
    """Called with a run, on any thread: reads as much of the log as a run covers, 256 MiB at most.

    `segments` gives those of the log as they are now. Raises StoreDamagedError when the log has none for the run,
    ValueError when the segment is closed meanwhile, OSError.
    """

    def __init__(self, folder: Path, index: QueueIndex, segments: Callable[[], Sequence[Segment]]) -> None:
        self._folder = folder
        self._index = index
        self.segments = segments

    def __call__(self, run: FileRun) -> None:
        segment = next((each for each in self.segments() if each.start <= run.start < each.end), None)
        if segment is None:
            raise StoreDamagedError(f"the log has no segment of offset {run.start}")
        made = QueueIndex(segment.size, segment.size, NO_LIMIT)
        scan_flushed(segment, run.start, run.end, made, RecoveryReport(), lambda count: None)
        live, scanned = made.live_run()
        live.start, live.end = run.start, run.end
        try:
            directory = run.file.directory()
        except (StoreDamagedError, FileNotFoundError):
            began, ended = self._index.next_offsets_beside(run)
            following = {**began, **scanned, **ended}
        else:
            following = _as_it_was(live, directory)
        write_run(live, self._folder, run.log_id, following)


def _as_it_was(live: LiveRun, directory: Directory) -> dict[Key, int]:
    """Gives each queue the entries that the directory has of it: who found a place in it may look there still.

    A record that the log has no more is an entry that cannot be read. Returns the next offsets.
    """
    rows = directory.rows
    following = dict(zip(directory.keys(), rows["next"].tolist(), strict=True))
    for key, base, count in zip(following, rows["base"].tolist(), rows["entries"].tolist(), strict=True):
        if count:
            live.shape(key, base, count)
    return following
