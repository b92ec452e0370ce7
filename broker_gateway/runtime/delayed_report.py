"""What was counted for the log and is not told yet: told after a time though nothing more happens, and at the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

_LONGEST = 1000
"""Characters of an error that is kept."""

_waiting: set[DelayedReport] = set()


class DelayedReport:
    """A call of `tell(ends)` on the running loop; `ends` says whether the loop is about to end.

    Without a running loop there is no call: the next event has to tell.
    """

    def __init__(self, tell: Callable[[bool], None]) -> None:
        self._tell = tell
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self.loop: asyncio.AbstractEventLoop | None = None

    def within(self, seconds: float) -> None:
        """The call comes after this time; sooner when one is to come sooner."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        due = loop.time() + seconds
        if self._timer is not None and self.loop is loop and self._due <= due:
            return
        self.cancel()
        self._due, self.loop = due, loop
        self._timer = loop.call_later(seconds, self.now)
        _waiting.add(self)

    def cancel(self) -> None:
        """There is nothing to tell any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        _waiting.discard(self)

    def now(self, ends: bool = False) -> None:
        self.cancel()
        self._tell(ends)


def waiting() -> list[DelayedReport]:
    """On the running loop."""
    loop = asyncio.get_running_loop()
    return [each for each in _waiting.copy() if each.loop is loop]


def tell_now() -> None:
    """All that waits on the running loop, which is about to end."""
    for each in waiting():
        each.now(ends=True)


def kept(details: dict[str, Any]) -> dict[str, Any]:
    """For a later line: of an exception what it says, since it holds all that was at work when it was raised."""
    error = details.get("exc_info")
    if error is None:
        return details
    others = {each: value for each, value in details.items() if each != "exc_info"}
    return {**others, "error": f"{type(error).__name__}: {error}"[:_LONGEST]}
