"""Several logs asked at once, so that one which does not answer delays only itself.

| a log | is |
|---|---|
| that answered its last call | present |
| whose call is under way no longer than `patience_s` | what it was |
| whose call is under way longer, or failed | away: nobody waits for it; its call goes on, or is made again in the background |
| that was put to rest | away, and not asked for 5 s; after failures twice as long each time, until some of it was read |
| whose answer came too late for a batch | put to rest for 5 s, and not asked before that answer |

Going away and coming back are noted once each.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from structured_streaming.errors import LakeError, SourceError
from structured_streaming.source.logs import Log, LogState, open_log

PATIENCE_S = 1.0
AGAIN_S = 1.0
"""Between calls to a log whose last one failed."""
SHORTEST_REST_S = 5.0
LONGEST_REST_S = 300.0
_GRACE_S = 0.02
"""For the other logs, once one has something new."""
T = TypeVar("T")


class _Peer:
    """A log and how it answers; only the thread that owns the watch changes it."""

    def __init__(self, target: str, token: str | None) -> None:
        self.target = target
        self.state: LogState | None = None
        self.away = False
        self.reason = ""
        """Why its last call failed; noted."""
        self.asking: Future[LogState] | None = None
        self.overdue_at = 0.0
        self.not_before = 0.0
        self.rests = 0
        """How often it failed since some of it was read."""
        self.late: Future[object] | None = None
        """A call that a batch did not wait for any longer."""
        self._token = token
        self._log: Log | None = None
        self._opening = threading.Lock()

    def begin(self, call: Callable[[Log], T]) -> Future[T]:
        """Runs a call on a thread of its own."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(call(self._opened()))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True, name=f"log {self.target}").start()
        return future

    def _opened(self) -> Log:
        with self._opening:
            if self._log is None:
                self._log = open_log(self.target, self._token)
            return self._log


class LogWatch:
    """The logs at `targets`; `note` is told who goes away and comes back."""

    def __init__(
        self,
        targets: Iterable[str],
        token: str | None,
        note: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._peers = {target: _Peer(target, token) for target in targets}
        self._note = note
        self._patience_s = patience_s

    def states(self, wait_ms: int = 0, after: Mapping[str, int] | None = None) -> dict[str, LogState]:
        """States of the logs that are present, by target.

        Waits up to `wait_ms` for one whose end is beyond what `after` says of its target.
        """
        known, now = after or {}, time.monotonic()
        for peer in self._peers.values():
            if peer.asking is None and not _still_late(peer) and now >= peer.not_before:
                end = known.get(peer.target, -1)
                peer.asking = peer.begin(lambda log, end=end: log.describe(wait_ms, end))  # type: ignore[misc]
                peer.overdue_at = now + self._patience_s + wait_ms / 1000
        self._wait(known if wait_ms else None)
        for peer in self._peers.values():
            self._take(peer)
        return {peer.target: peer.state for peer in self._peers.values() if peer.state and not peer.away}

    def missing(self) -> dict[str, str]:
        """Targets that are not present, and why."""
        return {
            peer.target: peer.reason or f"{_named(peer.target)} does not answer"
            for peer in self._peers.values()
            if peer.away or peer.state is None
        }

    @property
    def unanswered(self) -> bool:
        """Whether some log has neither answered nor failed yet."""
        return any(peer.state is None and not peer.reason for peer in self._peers.values())

    def never_seen(self) -> list[str]:
        """Why logs that never answered did not."""
        return [
            peer.reason or f"{_named(peer.target)} does not answer"
            for peer in self._peers.values()
            if peer.state is None
        ]

    def each(self, calls: Mapping[str, Callable[[Log], T]]) -> dict[str, T]:
        """Makes a call on several logs; answers by target. A log that does not answer in time, or fails, rests."""
        begun = {target: self._peers[target].begin(call) for target, call in calls.items()}
        done, _ = wait(begun.values(), self._patience_s)
        answers: dict[str, T] = {}
        for target, future in begun.items():
            error = future.exception() if future in done else None
            if future not in done:
                self._peers[target].late = future  # type: ignore[assignment]  # only its error counts
                self._leave(self._peers[target], f"{_named(target)} does not answer", SHORTEST_REST_S)
            elif isinstance(error, SourceError):
                self.rest(target, str(error))
            else:
                answers[target] = future.result()
        return answers

    def rest(self, target: str, reason: str, told: bool = False) -> None:
        """Leaves a log that failed alone, longer each time; `told` when somebody else says so."""
        peer = self._peers[target]
        rest_s = min(SHORTEST_REST_S * 2.0 ** min(peer.rests, 10), LONGEST_REST_S)
        peer.rests += 1
        if told:
            peer.reason = peer.reason or reason
        self._leave(peer, reason, rest_s)

    def read(self, target: str) -> None:
        """Some of it was read: a later rest begins short again."""
        self._peers[target].rests = 0

    def _wait(self, known: Mapping[str, int] | None) -> None:
        """Until nobody present is waited for any more or, with `known`, one has something beyond it."""
        while True:
            now = time.monotonic()
            asked = [peer for peer in self._peers.values() if peer.asking is not None]
            pending = {
                peer.asking: peer
                for peer in asked
                if peer.asking and not peer.asking.done() and not peer.away and peer.overdue_at > now
            }
            if not pending:
                return
            timeout_s = min(peer.overdue_at for peer in pending.values()) - now
            if known is not None and any(_news(peer, known) for peer in asked):
                wait(pending, min(timeout_s, _GRACE_S))
                return
            wait(pending, timeout_s, FIRST_COMPLETED)

    def _take(self, peer: _Peer) -> None:
        """What became of a peer's question."""
        asking, now = peer.asking, time.monotonic()
        if asking is None:
            return
        if not asking.done():
            if now >= peer.overdue_at:
                peer.away = True
            return
        peer.asking = None
        error = asking.exception()
        if error is None:
            if now < peer.not_before:  # put to rest meanwhile
                return
            peer.state = asking.result()
            if peer.reason:
                self._note(f"{_named(peer.target)} answers again")
            peer.away, peer.reason = False, ""
            return
        if not isinstance(error, LakeError):
            raise error
        peer.not_before = max(peer.not_before, now + AGAIN_S)
        self._gone(peer, str(error))

    def _leave(self, peer: _Peer, reason: str, rest_s: float) -> None:
        peer.not_before = time.monotonic() + rest_s
        self._gone(peer, f"{reason} (left alone for {rest_s:g} s)")

    def _gone(self, peer: _Peer, reason: str) -> None:
        if not peer.reason:
            self._note(f"{reason}; the other logs are read on, this one is asked again")
        peer.away, peer.reason = True, reason


def _still_late(peer: _Peer) -> bool:
    """Whether its late call is under way yet; one that failed in the end counts as a failure."""
    if peer.late is not None and peer.late.done():
        peer.rests += peer.late.exception() is not None
        peer.late = None
    return peer.late is not None


def _news(peer: _Peer, known: Mapping[str, int]) -> bool:
    asking = peer.asking
    if asking is None or not asking.done() or asking.exception() is not None:
        return False
    return asking.result().end > known.get(peer.target, -1)


def _named(target: str) -> str:
    kind, _, address = target.partition(":")
    return f"{kind} {address}"
