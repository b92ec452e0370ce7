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
_MEMORY = 512 << 20
_MOST_TOLD = 20
_heard: ContextVar[list[str] | None] = ContextVar("heard", default=None)


class LakeEngine:
    """Over the lake at `location` and, with `source`, what logs hold beyond it. Statements may run at a time."""

    def __init__(self, location: str, source: Mapping[str, str]) -> None:
        self.location = location
        self._source = dict(source)
        self._lock = threading.Lock()
        self._engine: EmbeddedEngine | None = None
        self._failed = ""
        self._again = 0.0

    @contextlib.contextmanager
    def asked(self) -> Iterator[EmbeddedEngine]:
        """Raises AskError where it cannot be opened, or where what is done within raises LakeError."""
        from structured_streaming.errors import LakeError

        engine = self._opened()
        try:
            yield engine
        except LakeError as error:
            raise AskError(str(error)) from error

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
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _opened(self) -> EmbeddedEngine:
        from structured_streaming.embedded.engine import EmbeddedEngine
        from structured_streaming.embedded.limits import Limits
        from structured_streaming.errors import LakeError

        if not self._lock.acquire(timeout=STATEMENT_S):
            raise AskError(f"the lake {self.location} is being opened for more than {STATEMENT_S:.0f} s")
        try:
            if self._engine is not None:
                return self._engine
            if time.monotonic() < self._again:
                raise AskError(self._failed)
            limits = Limits(memory_bytes=_MEMORY, seconds=STATEMENT_S)
            try:
                self._engine = EmbeddedEngine.open(
                    self.location, limits, source=self._source or None, tell=_tell
                )
            except LakeError as error:
                self._failed, self._again = str(error), time.monotonic() + AGAIN_S
                raise AskError(self._failed) from error
            return self._engine
        finally:
            self._lock.release()


def _tell(line: str) -> None:
    said = _heard.get()
    if said is not None and line not in said and len(said) < _MOST_TOLD:
        said.append(line)
