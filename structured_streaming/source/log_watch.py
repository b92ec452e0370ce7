"""Several logs asked at once, so that one which does not answer delays only itself.

| a log | is |
|---|---|
| that answered its last call | present |
| whose call is under way no longer than `patience_s` | what it was |
| whose call is under way longer, or failed | away: nobody waits for it; its call goes on, or is made again in the background |
| that was put to rest | away, and not asked for 5 s; after failures twice as long each time, until some of it was read |
| whose answer came too late for a batch | put to rest for 5 s, and not asked before that answer, which the next batch has |
| whose last call of a kind was too late | waited for by none of that kind, until one is answered in time |

Going away and coming back are noted once each; of a log that stays slow only the first time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from store.log_source import LogSource, LogState
from structured_streaming.errors import LakeError, SourceError, UnreachableError
from structured_streaming.source.access import Access
from structured_streaming.source.logs import open_log

PATIENCE_S = 1.0
START_S = 60.0
"""What reading begins with may take: opening logs, compiling the scan."""
AGAIN_S = 1.0
"""Between calls to a log whose last one failed."""
SHORTEST_REST_S = 5.0
LONGEST_REST_S = 300.0
_GRACE_S = 0.02
"""For the other logs, once one has something new, and for those that are slow."""
T = TypeVar("T")


class Question(NamedTuple, Generic[T]):
    """A call on a log; `about` says what it asks: a late answer serves a later question about the same."""

    about: Hashable
    call: Callable[[LogSource], T]


class _Call(Generic[T]):
    """A call under way on a thread of its own."""

    def __init__(self, question: Question[T], opened: Callable[[], LogSource], name: str) -> None:
        self.about = question.about
        self.future: Future[T] = Future()
        self.took_s: float | None = None
        began = time.monotonic()

        def run() -> None:
            try:
                answer = question.call(opened())
            except BaseException as error:
                self.took_s = time.monotonic() - began
                self.future.set_exception(error)
            else:
                self.took_s = time.monotonic() - began
                self.future.set_result(answer)

        threading.Thread(target=run, daemon=True, name=name).start()


class _Peer:
    """A log and how it answers; only the thread that owns the watch changes it."""

    def __init__(self, target: str, access: Access) -> None:
        self.target = target
        self.state: LogState | None = None
        self.away = False
        self.reason = ""
        """Why its last call failed; noted."""
        self.refused = False
        """Whether no later call is expected to fare better."""
        self.left = ""
        """Why it is no longer asked once it does not answer; empty as long as it belongs here."""
        self.asking: _Call[LogState] | None = None
        self.overdue_at = 0.0
        self.allowed_s = 0.0
        """What answers in that time is not slow."""
        self.slow_to_describe = False
        self.slow_to_answer = False
        """To the calls of a batch."""
        self.not_before = 0.0
        self.rests = 0
        """How often it failed since some of it was read."""
        self.late: _Call[Any] | None = None
        """A call that a batch did not wait for any longer."""
        self._access = access
        self._log: LogSource | None = None
        self._opening = threading.Lock()

    def begin(self, question: Question[T]) -> _Call[T]:
        """Asks it."""
        return _Call(question, self._opened, f"log {self.target}")

    def take_late(self, about: Hashable) -> _Call[Any] | None:
        """The late answer, if there is one to this; another one is of no use any more."""
        late, self.late = self.late, None
        return late if late is not None and late.future.done() and late.about == about else None

    def _opened(self) -> LogSource:
        with self._opening:
            if self._log is None:
                self._log = open_log(self.target, self._access)
            return self._log

    def close(self) -> None:
        """Closes the log where no call is under way."""
        if self._log is not None and self.asking is None and self.late is None:
            self._log.close()
            self._log = None


class LogWatch:
    """The logs at `targets`; `note` is told who goes away and comes back."""

    def __init__(
        self,
        targets: Iterable[str],
        access: Access,
        note: Callable[[str], None],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._peers = {target: _Peer(target, access) for target in targets}
        self._access = access
        self._note = note
        self.patience_s = patience_s

    @property
    def targets(self) -> list[str]:
        """Logs that are asked."""
        return list(self._peers)

    def add(self, target: str) -> None:
        """From now on it is asked too; nothing changes where it is already."""
        self._peers.setdefault(target, _Peer(target, self._access)).left = ""

    def leave(self, target: str, reason: str) -> None:
        """It is asked as long as it answers, then no longer."""
        if (peer := self._peers.get(target)) is not None:
            peer.left = reason
            if peer.away:
                self._gone(peer, peer.reason or f"{_named(target)} does not answer")

    def drop(self, target: str) -> None:
        """It is asked no longer."""
        if (peer := self._peers.pop(target, None)) is not None:
            peer.close()

    def close(self) -> None:
        """Closes what is open; nothing is asked afterwards."""
        for peer in self._peers.values():
            peer.close()

    def states(self, wait_ms: int = 0, after: Mapping[str, int] | None = None) -> dict[str, LogState]:
        """States of the logs that are present, by target.

        Waits up to `wait_ms` for one whose end is beyond what `after` says of its target.
        """
        known, now = after or {}, time.monotonic()
        for peer in self._peers.values():
            if peer.asking is None and not _still_late(peer) and now >= peer.not_before:
                end = known.get(peer.target, -1)
                peer.asking = peer.begin(Question(end, partial(_described, wait_ms, end)))
                peer.allowed_s = self.patience_s + wait_ms / 1000
                peer.overdue_at = now + (_GRACE_S if peer.slow_to_describe else peer.allowed_s)
        self._wait(known if wait_ms else None)
        for peer in list(self._peers.values()):
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
    def refused(self) -> list[str]:
        """Why logs cannot be read now nor later, as far as their last calls tell: a token, a certificate."""
        return [peer.reason for peer in self._peers.values() if peer.refused]

    def nobody(self) -> SourceError:
        """Why no log can be read: UnreachableError when that may change by itself."""
        reasons = "; ".join(self.missing().values())
        return SourceError(reasons) if self.refused else UnreachableError(reasons)

    @property
    def asking(self) -> bool:
        """Whether some log has not answered yet what it was asked last."""
        return any(peer.asking is not None for peer in self._peers.values())

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

    def each(self, questions: Mapping[str, Question[T]], patience_s: float | None = None) -> dict[str, T]:
        """Asks several logs; answers by target. A log that does not answer in time, or fails, rests.

        With `patience_s` slow ones are waited for too.
        """
        begun: dict[str, _Call[T]] = {}
        for target, question in questions.items():
            peer = self._peers[target]
            begun[target] = peer.take_late(question.about) or peer.begin(question)
        prompt = [
            call.future
            for target, call in begun.items()
            if patience_s is not None or not self._peers[target].slow_to_answer
        ]
        wait(prompt, self.patience_s if patience_s is None else patience_s)
        wait([call.future for call in begun.values()], _GRACE_S)
        return {
            target: call.future.result() for target, call in begun.items() if self._answered(target, call)
        }

    def _answered(self, target: str, call: _Call[T]) -> bool:
        """Whether a call of a batch was answered by now; puts the log to rest when not."""
        peer, done = self._peers[target], call.future.done()
        error = call.future.exception() if done else None
        if isinstance(error, SourceError):
            self.rest(target, str(error))
            return False
        if done:
            peer.slow_to_answer = (call.took_s or 0.0) > self.patience_s
            return True
        peer.late = call
        if peer.slow_to_answer:
            peer.away, peer.not_before = True, time.monotonic() + SHORTEST_REST_S
        else:
            peer.slow_to_answer = True
            self._leave(peer, f"{_named(target)} does not answer", SHORTEST_REST_S)
        return False

    def rest(self, target: str, reason: str, told: bool = False) -> None:
        """Leaves a log that failed alone, longer each time; `told` when somebody else says so."""
        peer = self._peers.get(target)
        if peer is None:  # dropped meanwhile
            return
        rest_s = min(SHORTEST_REST_S * 2.0 ** min(peer.rests, 10), LONGEST_REST_S)
        peer.rests += 1
        if told:
            peer.reason = peer.reason or reason
        self._leave(peer, reason, rest_s)

    def read(self, target: str) -> None:
        """Some of it was read: a later rest begins short again."""
        if target in self._peers:
            self._peers[target].rests = 0

    def _wait(self, known: Mapping[str, int] | None) -> None:
        """Until nobody present is waited for any more or, with `known`, one has something beyond it."""
        while True:
            now = time.monotonic()
            asked = [peer for peer in self._peers.values() if peer.asking is not None]
            pending = {
                peer.asking.future: peer
                for peer in asked
                if peer.asking and not peer.asking.future.done() and not peer.away and peer.overdue_at > now
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
        if not asking.future.done():
            if now >= peer.overdue_at:
                peer.away = peer.slow_to_describe = True
            return
        peer.asking = None
        error = asking.future.exception()
        if error is None:
            if now < peer.not_before:  # put to rest meanwhile
                return
            peer.state = asking.future.result()
            peer.slow_to_describe = (asking.took_s or 0.0) > peer.allowed_s
            if peer.reason:
                self._note(f"{_named(peer.target)} answers again")
            peer.away, peer.reason, peer.refused = False, "", False
            return
        if not isinstance(error, LakeError):
            raise error
        peer.not_before = max(peer.not_before, now + AGAIN_S)
        peer.refused = not isinstance(error, UnreachableError)
        self._gone(peer, str(error))

    def _leave(self, peer: _Peer, reason: str, rest_s: float) -> None:
        peer.not_before = time.monotonic() + rest_s
        self._gone(peer, f"{reason} (left alone for {rest_s:g} s)")

    def _gone(self, peer: _Peer, reason: str) -> None:
        if peer.left:
            self._note(f"{peer.left} and is no longer asked: {reason}")
            self.drop(peer.target)
            return
        if not peer.reason:
            others = any(each.state and not each.away for each in self._peers.values() if each is not peer)
            on = "the other logs are read on, this one" if others else "it"
            self._note(f"{reason}; {on} is asked again")
        peer.away, peer.reason = True, reason


def _described(wait_ms: int, after: int, log: LogSource) -> LogState:
    return log.describe(wait_ms, after)


def _still_late(peer: _Peer) -> bool:
    """Whether its late call is under way yet; one that failed in the end counts as a failure."""
    late = peer.late
    if late is not None and late.future.done() and late.future.exception() is not None:
        peer.rests += 1
        peer.late = None
    return late is not None and not late.future.done()


def _news(peer: _Peer, known: Mapping[str, int]) -> bool:
    asking = peer.asking
    if asking is None or not asking.future.done() or asking.future.exception() is not None:
        return False
    return asking.future.result().end > known.get(peer.target, -1)


def _named(target: str) -> str:
    kind, _, address = target.partition(":")
    return f"{kind} {address}"
