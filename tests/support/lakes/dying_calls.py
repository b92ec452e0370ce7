"""Work on a lake's files that dies at any of its calls, as kill -9 has it: before the call did anything, or just behind it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from structured_streaming.storage.local import LocalFile, LocalFolder


class Crash(BaseException):
    """Stands for kill -9: nothing that catches errors catches it."""


class DyingCalls:
    """Watches calls of folders (or of one `folder` alone), `steps`, and of files, `of_files`. `when` they die: "before" they did
    anything, or "after"."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        when: str,
        steps: Iterable[str],
        of_files: Iterable[str] = ("finish", "discard"),
        folder: Path | None = None,
    ) -> None:
        self._folder = folder
        self._before = when == "before"
        self._count = self._fatal = 0
        for kind, names in ((LocalFolder, steps), (LocalFile, of_files)):
            for name in names:
                monkeypatch.setattr(kind, name, self._watched(getattr(kind, name)))

    def kill(self, call: int, work: Callable[[], object]) -> bool:
        """Whether the work died at its call of that number, from 1; not where it has fewer."""
        self._count, self._fatal = 0, call
        try:
            work()
        except Crash:
            return True
        finally:
            self._fatal = 0
        return False

    def _watched(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(its: Any, *arguments: Any, **named: Any) -> Any:
            if self._folder is not None and its.path != self._folder:
                return real(its, *arguments, **named)
            self._count += 1
            dies = self._count == self._fatal
            if dies and self._before:
                raise Crash
            try:
                return real(its, *arguments, **named)
            finally:
                if dies:  # behind a call that failed, too
                    raise Crash

        return call
