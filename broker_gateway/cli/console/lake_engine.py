"""The lake's engine of the console: opened when it is first asked, on whatever thread asks, and anew where it could not be."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from broker_gateway.cli.console.errors import AskError

if TYPE_CHECKING:
    from structured_streaming.embedded.engine import EmbeddedEngine

STATEMENT_S = 20.0
"""What a statement may take."""
AGAIN_S = 5.0
"""For so long a lake that could not be opened is not tried again."""
_MEMORY = 512 << 20


class LakeEngine:
    """Over the lake at `location` and, with `source`, what logs hold beyond it. Statements may run at a time."""

    def __init__(self, location: str, source: Mapping[str, str]) -> None:
        self.location = location
        self._source = dict(source)
        self._lock = threading.Lock()
        self._engine: EmbeddedEngine | None = None
        self._failed = ""
        self._again = 0.0
        self._told: list[str] = []

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

    def said(self) -> tuple[str, ...]:
        """What the engine told since the last call, such as that a broker did not answer."""
        with self._lock:
            told, self._told = self._told, []
        return tuple(dict.fromkeys(told))

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
                    self.location, limits, source=self._source or None, tell=self._tell
                )
            except LakeError as error:
                self._failed, self._again = str(error), time.monotonic() + AGAIN_S
                raise AskError(self._failed) from error
            self._told.clear()
            return self._engine
        finally:
            self._lock.release()

    def _tell(self, line: str) -> None:
        if len(self._told) < 20:
            self._told.append(line)
