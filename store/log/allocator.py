"""Making segments: over several folders in turn, the next one ahead of need, so that a roll does not wait."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from store.log.page_cache import PageCache
from store.log.segment import Segment

log = logging.getLogger(__name__)


class Allocator:
    """Makes the files of the commit log. `folders` are those of storePathCommitLog, used in turn.

    `pages` brings in what of them is needed next.
    """

    def __init__(self, folders: Sequence[Path], segment_size: int, pages: PageCache) -> None:
        self.folders = folders
        self._pages = pages
        self._size = segment_size
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="allocate")
        self._start = -1
        self._next: Future[Segment] | None = None
        self.full: frozenset[Path] = frozenset()
        """Folders that get no new segment while another one may."""

    @property
    def error(self) -> OSError | None:
        """Why the next segment could not be made ahead."""
        if self._next is None or not self._next.done():
            return None
        error = self._next.exception()
        return error if isinstance(error, OSError) else None

    def prepare(self, start: int) -> None:
        """Begins to make the segment at `start`, if none is being made; a failure is tried again."""
        if self._next is None or self.error is not None:
            self._start = start
            self._next = self._thread.submit(self._create, start)

    def take(self, start: int) -> Segment:
        """The segment at `start`, new. Raises OSError when there is no room for it."""
        prepared, self._next = self._next, None
        if prepared is not None:
            try:
                segment = prepared.result()
            except OSError as error:
                log.warning("segment %d could not be made ahead: %s", self._start, error)
            else:
                if segment.start == start:
                    return segment
                _remove(segment)
        return self._create(start)

    def ahead(self, newest: Segment, offset: int) -> int:
        """The log is written up to `offset`, in `newest`; returns the offset at which to call again."""
        made = self._next if self._next is not None and self._next.done() else None
        following = made.result() if made is not None and made.exception() is None else None
        return self._pages.reached(newest, following, offset)

    def close(self) -> None:
        """Removes what was made ahead and not taken."""
        prepared, self._next = self._next, None
        made = prepared.result() if prepared is not None and prepared.exception() is None else None
        self._pages.close()
        if made is not None:
            _remove(made)
        self._thread.shutdown(wait=True)

    def _create(self, start: int) -> Segment:
        folders = [folder for folder in self.folders if folder not in self.full] or self.folders
        folder = folders[start // self._size % len(folders)]
        segment = Segment.create(folder, start, self._size)
        self._pages.made(segment)
        return segment


def _remove(segment: Segment) -> None:
    segment.close()
    segment.path.unlink()
