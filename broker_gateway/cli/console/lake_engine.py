"""The lake's engine of the console: opened when it is first asked, on whatever thread asks, and anew where it could not be."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from broker_gateway.cli.console.errors import AskError

if TYPE_CHECKING:
    from structured_streaming.embedded.engine import EmbeddedEngine

STATEMENT_S = 20.0
"""What a statement may take."""
AGAIN_S = 5.0
"""For so long a lake that could not be opened is not tried again."""
LOOKED_S = 5.0
"""For so long a lake is taken for the one that it was."""
NOT_YET = (
    "no lake yet at {}: the reput makes it when it has started, or `lakebroker init`; it is looked for again"
)
_CLOSE_S = 1.0
_MEMORY = 512 << 20
_MOST_TOLD = 20
_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


class _Opened:
    """An engine, and how many ask it; one that is `retired`, which says why, is closed by the last of them. `identity`: of its lake,
    None where it could not be looked at."""

    def __init__(self, engine: EmbeddedEngine, identity: tuple[str, int] | None) -> None:
        self.engine = engine
        self.identity = identity
        self.users = 0
        self.retired = ""


class LakeEngine:
    """Over the lake at `location` and, with `source`, what logs hold beyond it. Statements may run at a time. A lake that is made anew at
    its place is opened anew."""

    def __init__(self, location: str, source: Mapping[str, str]) -> None:
        self.location = location
        self._source = dict(source)
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        """Held by the one thread that looks whether the lake is still the same; other threads do not wait for it."""
        self._closed = False
        self._opened: _Opened | None = None
        self._looked = 0.0
        """When its identity was looked at, by the monotonic clock."""
        self._failed = ""
        self._again = 0.0

    @contextlib.contextmanager
    def asked(self) -> Iterator[EmbeddedEngine]:
        """Raises AskError where it cannot be opened, or where what is done within raises LakeError."""
        from structured_streaming.errors import LakeError

        opened = self._taken()
        try:
            yield opened.engine
        except LakeError as error:
            why = f"{opened.retired}: ask again" if opened.retired else str(error)
            raise AskError(why) from error
        finally:
            with self._lock:
                opened.users -= 1
                ends = bool(opened.retired) and not opened.users
            if ends:
                opened.engine.close()

    def rows(self, statement: str, given: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        """Those of a statement. Raises AskError."""
        with self.asked() as engine, contextlib.closing(engine.query(statement, given or {})) as reader:
            found: list[dict[str, Any]] = reader.read_all().to_pylist()
            return found

    @contextlib.contextmanager
    def hearing(self) -> Iterator[list[str]]:
        """What the engine tells of the statements within, in this thread, such as that a broker does not answer."""
        said: list[str] = []
        before = _heard.set(said)
        try:
            yield said
        finally:
            _heard.reset(before)

    def close(self) -> None:
        """Ends what is under way."""
        self._closed = True
        held = self._lock.acquire(timeout=_CLOSE_S)  # an engine that is being opened is not waited for
        try:
            opened, self._opened = self._opened, None
        finally:
            if held:
                self._lock.release()
        if opened is not None:
            opened.engine.close()

    def _taken(self) -> _Opened:
        self._look()
        if not self._lock.acquire(timeout=STATEMENT_S):
            raise AskError(f"the lake {self.location} is being opened for more than {STATEMENT_S:.0f} s")
        try:
            if self._closed:
                raise AskError("the console was ended")
            opened = self._opened = self._opened or self._open()
            opened.users += 1
            return opened
        finally:
            self._lock.release()

    def _look(self) -> None:
        """Lets go of the engine where there is another lake by now, or none. Meanwhile others use it; a look that fails says nothing of
        the lake, and is made again later."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            opened = self._opened
            if opened is None or time.monotonic() < self._looked + LOOKED_S:
                return
            retired = self._changed(opened)
            self._looked = time.monotonic()
            if retired:
                self._retire(opened, retired)
        finally:
            self._looking.release()

    def _changed(self, opened: _Opened) -> str:
        """Why its lake is another one; empty where it is the same, or nobody knows."""
        from structured_streaming.errors import LakeError, NoLakeError
        from structured_streaming.lake import identity
        from structured_streaming.storage.location import lake_folder

        try:
            found = identity(lake_folder(self.location))
        except NoLakeError:
            return "the lake was removed meanwhile"
        except LakeError:
            return ""
        known, opened.identity = opened.identity, found
        if known is not None and (found[0] != known[0] or found[1] < known[1]):
            return "the lake was made anew meanwhile"
        return ""

    def _retire(self, opened: _Opened, why: str) -> None:
        with self._lock:
            if self._opened is not opened:  # closed meanwhile
                return
            self._opened = None
            opened.retired = why
            used = bool(opened.users)
        if used:
            opened.engine.cancel()
        else:
            opened.engine.close()

    def _open(self) -> _Opened:
        from structured_streaming.embedded.engine import EmbeddedEngine
        from structured_streaming.embedded.limits import Limits
        from structured_streaming.errors import LakeError, NoLakeError
        from structured_streaming.lake import identity
        from structured_streaming.storage.location import lake_folder

        if time.monotonic() < self._again:
            raise AskError(self._failed)
        limits = Limits(memory_bytes=_MEMORY, seconds=STATEMENT_S)
        known = None
        with contextlib.suppress(LakeError):  # which opening says better
            known = identity(lake_folder(self.location))
        try:
            engine = EmbeddedEngine.open(
                self.location, limits, source=self._source or None, tell=_tell, repeats=True
            )
        except LakeError as error:
            self._failed = NOT_YET.format(self.location) if isinstance(error, NoLakeError) else str(error)
            self._again = time.monotonic() + AGAIN_S
            raise AskError(self._failed) from error
        self._looked = time.monotonic()
        return _Opened(engine, known)


def _tell(line: str) -> None:
    said = _heard.get()
    if said is not None and line not in said and len(said) < _MOST_TOLD:
        said.append(line)
