"""Lines to a stream that may fail, such as a log on a full disk: what cannot be written is counted, and never raised."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import TextIO


class LineOutput:
    """Writes whole lines to `stream` (None: nowhere); a logger of structlog. May be used by several threads.

    Once lines can be written again, `notice` says how many were lost, and why. With `before`, it goes on where that one
    ended, if it wrote to the same stream.
    """

    def __init__(
        self,
        stream: TextIO | None,
        notice: Callable[[int, str], str] | None = None,
        before: LineOutput | None = None,
    ) -> None:
        self._stream = stream
        self._fd = _descriptor(stream)
        self._notice = notice
        self._lock = threading.Lock()
        follows = before if before is not None and before._stream is stream else None
        self._torn: bool = follows is not None and follows._torn
        self._why: str = follows._why if follows is not None else ""
        self.lost: int = follows.lost if follows is not None else 0
        """Lines that could not be written, since the last notice."""

    def line(self, text: str) -> bool:
        """Writes a line; whether it was written."""
        with self._lock:
            try:
                if self.lost and self._notice is not None:
                    self._write(self._notice(self.lost, self._why))
                    self.lost = 0
                self._write(text)
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self.lost += 1
                self._why = str(error)
                return False
        return True

    def msg(self, message: str) -> None:
        self.line(message)

    debug = info = warn = warning = error = critical = exception = log = failure = fatal = err = msg

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        if self._fd is None:
            self._stream.write(f"{text}\n")
            self._stream.flush()
            return
        # not through the stream's buffer: it would keep what failed, and fail with it at the process's end
        data = f"{text}\n".encode(errors="backslashreplace")
        if self._torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, data[written:])
        finally:
            if written:
                self._torn = written < len(data)


def _descriptor(stream: TextIO | None) -> int | None:
    """The file behind a stream, if it has one; what the stream holds is written."""
    if stream is None:
        return None
    with contextlib.suppress(OSError, ValueError):
        stream.flush()
    try:
        return stream.fileno()
    except (OSError, ValueError):  # a stream in memory
        return None
