"""Statements that run: their time, and how they are stopped.

A statement's time is that of the engine's work; while whoever asked does something with the rows, it stands still. An
interrupt that comes just before the engine begins is lost, so that it is repeated until the work has ended.

Some work looks for no interrupt: one call of LIKE, or a plan of very many columns. Only the end of the process ends it. So who
opens an engine in a process that may end says how (`stuck`), and that is done `PATIENCE_S` after the statement was to end. What a
statement waits for beside the engine (`elsewhere`: the lake's files, another statement that reads them, code that is compiled) ends
no process.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb
import pyarrow as pa

from structured_streaming.embedded.failures import CancelledError, plain
from structured_streaming.errors import LakeError

PATIENCE_S = 10.0
"""Between the time at which a statement is to end and the end of its process, where the engine goes on all the same."""
_LOOK_S = 0.1
_ROOM_S = 2.0


class Running:
    """A statement under way in a connection; one thread at a time works on it. `clock` tells seconds."""

    def __init__(
        self, cursor: duckdb.DuckDBPyConnection, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.cursor = cursor
        self._clock = clock
        self._seconds = seconds
        self._used = 0.0
        self._since: float | None = None
        self._cancelled = False
        self._late = False
        self._due: float | None = None
        self._elsewhere = False

    @property
    def since(self) -> float | None:
        """When the engine began what it works at now; None while it does nothing."""
        return self._since

    @property
    def cancelled(self) -> bool:
        """Whether somebody ended it, as its time did not."""
        return self._cancelled

    @property
    def is_stuck(self) -> bool:
        """Whether the engine works on, long after it was told to end."""
        late = self._due is not None and time.monotonic() - self._due > PATIENCE_S
        return late and self._since is not None and not self._elsewhere

    def on(self, cursor: duckdb.DuckDBPyConnection) -> None:
        """Goes on with another one; its time is what is left."""
        self.cursor = cursor

    @contextmanager
    def working(self, line: int = 0) -> Iterator[None]:
        """Within, the engine works. Raises LakeError for what the engine raises; `line` as of `plain`."""
        self.check()
        since = self._since = self._clock()
        try:
            yield
        except (
            duckdb.Error,
            OSError,
            MemoryError,
            pa.ArrowException,
        ) as error:  # OSError: of Arrow, while rows are taken
            self.check()
            raise plain(error, line) from error
        finally:
            self._used += self._clock() - since
            self._since = None

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Within `working`: what is not this cursor's own work, though its time goes on. Raises LakeError when it is to end by then."""
        self._elsewhere = True
        try:
            yield
            self.check()  # or the engine would begin what is to end long since
        finally:
            self._elsewhere = False

    def check(self) -> None:
        """Raises LakeError when it is to end."""
        if self._cancelled:
            raise CancelledError("the statement was cancelled")
        if self._late or self._is_late():
            raise LakeError(
                f"the statement took longer than {self._seconds:g} s; give it more time (--timeout), or ask for less"
            )

    def cancel(self) -> None:
        """Ends it, or lets it begin no more work."""
        self._cancelled = True
        self.look()

    def look(self) -> None:
        """Interrupts it where it is to end."""
        self._late = self._late or self._is_late()
        if self._cancelled or self._late:
            self._due = time.monotonic() if self._due is None else self._due
            if self._since is not None:
                self.cursor.interrupt()

    def _is_late(self) -> bool:
        since = self._since
        used = self._used + (self._clock() - since if since is not None else 0.0)
        return bool(self._seconds) and used > self._seconds


def started_thread(run: Callable[..., object], *arguments: object) -> threading.Thread:
    """A thread that no end of the process waits for. Raises LakeError where there is no room for one, after a moment: a statement that
    was too large gives its memory back only when its error is forgotten."""
    until = time.monotonic() + _ROOM_S
    while True:
        thread = threading.Thread(target=run, args=arguments, daemon=True, name="sql")
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if time.monotonic() > until:
                raise LakeError(
                    f"too much runs at a time for another thread ({error}); ask again when some of it has ended"
                ) from error
        else:
            return thread
        gc.collect()
        time.sleep(_LOOK_S)


def not_stopped(running: Running) -> LakeError:
    """For whoever asked for a statement that ends with its process."""
    try:
        running.check()
    except LakeError as error:
        return LakeError(
            f"{error}; it did not stop within {PATIENCE_S:g} s, so that the process of the engine was ended"
        )
    raise AssertionError("only a statement that is to end can be stuck")


class Watch:
    """Looks after the statements of an engine, on a thread that is there while there are any.

    `stuck` is called on that thread for a statement that cannot be ended otherwise; it ends the process."""

    def __init__(self, stuck: Callable[[Running], None] | None = None) -> None:
        self._stuck = stuck
        self._running: set[Running] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, running: Running) -> Iterator[None]:
        """Within, a statement is looked after."""
        with self._changed:
            if self._thread is None:
                self._thread = started_thread(self._run)
            self._running.add(running)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(running)
                self._changed.notify()

    def cancel(self) -> None:
        """Cancels all that are under way."""
        with self._changed:
            for each in self._running:
                each.cancel()

    def _run(self) -> None:
        with self._changed:
            while self._running:
                for each in self._running:
                    each.look()
                    if self._stuck is not None and each.is_stuck:
                        self._stuck(each)
                self._changed.wait(_LOOK_S)
            self._thread = None
