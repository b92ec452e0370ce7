"""Dead letters sent again by the page: counted first, then done as it was counted, and only where the command allows it."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from broker_gateway.cli import replay_outcomes
from broker_gateway.cli.console.asking import ANSWERS_S
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.gateway_calls import GatewayCalls, Reached, connected, within
from broker_gateway.cli.output import Failure, overheard
from broker_gateway.cli.questions.letters import EVERY, ids_of, letters, letters_at, queues_of
from broker_gateway.cli.replaying import Sender, key_of
from broker_gateway.runtime.clock import now_ms
from store.counting import counted

MOST = 1_000
"""Dead letters of one replay; `lakebroker dlq replay` has no such limit."""
_RATE = 100.0
"""Messages a second."""
_STOP_S = 3.0
_MOST_MARKED = 100_000


class Place(NamedTuple):
    """Where a dead letter is in its group's dead-letter topic, and one of its ids: another broker has another dead letter there.
    `broker`: its name, empty where it is not known."""

    queue_id: int
    queue_offset: int
    message_id: str
    broker: str = ""


class Mark(NamedTuple):
    """Of a dead letter that this console sent again, or, unless it is `sure`, may have: no answer told. `number`: of marks until then."""

    ids: frozenset[str]
    at_ms: int
    sure: bool
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be sent again: `targets` are topics and how many go there; `failing` cannot be sent, and why of one of them; `again`
    of them this console has sent before, and `maybe` more it may have; `missing`
    were chosen, and are not there; `marks`: how many there were when it was begun."""

    gateway: str
    group: str
    keys: frozenset[replay_outcomes.Key]
    targets: tuple[tuple[str, int], ...]
    failing: int
    why: str
    again: int
    maybe: int
    missing: int
    marks: int


@dataclass(slots=True)
class Run:
    """A replay under way, or its outcome when it `ended_ms`, by the clock; 0 before. `why`: of the first that failed; `error`: why it
    ended before its end; `maybe`: those whose sending was begun, and no answer told."""

    group: str
    of: int
    sent: int = 0
    failed: int = 0
    maybe: int = 0
    why: str = ""
    error: str = ""
    ended_ms: int = 0

    @property
    def said(self) -> str:
        """For people, as of now."""
        if not self.ended_ms:
            return f"sending again: {self.sent + self.failed:,} of {counted(self.of, 'dead letter')}"
        parts = [f"{counted(self.sent, 'dead letter')} sent again"]
        parts += [f"{self.failed:,} could not be sent: {self.why}"] if self.failed else []
        why = self.error or "they are not there any more"
        parts += [f"{self.maybe:,} may have been sent: {why}"] if self.maybe else []
        left = self.of - self.sent - self.failed - self.maybe
        parts += [f"{left:,} not tried" + ("" if self.maybe else f": {why}")] if left else []
        return "; ".join(parts)


class Replays:
    """`allowed`: by `--allow-replay`. Without it every call is refused, whoever calls. Any thread may call."""

    def __init__(self, reached: Reached | None, allowed: bool) -> None:
        self._reached = reached
        self.allowed = allowed and reached is not None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._newest: Run | None = None
        self._stopped = threading.Event()
        self._runs: dict[str, Run] = {}
        self._marked: OrderedDict[tuple[str, int, int], Mark] = OrderedDict()
        self._marks = 0
        """How many were ever set."""

    def plan(self, group: str, places: Iterable[Place]) -> Plan:
        """What a replay of these dead letters would do; none: of all of the group. Sends nothing. Raises AskError."""
        reached, chosen = self._allowed(), frozenset(places)
        wanted: dict[tuple[int, int], set[str]] = {}
        marks_before = self._marks
        for place in chosen:  # ids of each broker's
            wanted.setdefault((place.queue_id, place.queue_offset), set()).add(place.message_id)
        rows: list[dict[str, Any]] = []
        keys: set[replay_outcomes.Key] = set()
        marks: list[Mark | None] = []
        try:
            with (
                overheard(),
                within(ANSWERS_S),
                connected(reached.gateway, reached.token_file, reached.tls_ca) as calls,
            ):
                sender = Sender(calls, _RATE, dry_run=True)
                queues = queues_of(calls, group)
                found = letters_at(calls, group, wanted) if wanted else letters(calls, group, queues, EVERY)
                for message in found:
                    queue_id, offset, _ = key = key_of(message)
                    if key in keys:  # of a gateway that gives it twice
                        continue
                    if wanted and wanted[queue_id, offset].isdisjoint(ids_of(message)):
                        continue
                    if len(rows) >= MOST:
                        raise AskError(
                            f"more than {MOST:,} dead letters: choose fewer, or use `lakebroker dlq replay {group}`"
                        )
                    rows.append(sender.send(message))
                    keys.add(key)
                    marks.append(self._mark((group, queue_id, offset), ids_of(message)))
        except Failure as failure:
            raise AskError(failure.message) from None
        if not rows:
            raise AskError(f"{group} has no such dead letter at {reached.gateway}")
        failing = [row for row in rows if row["outcome"] != "would be sent"]
        targets = Counter(row["topic"] for row in rows if row["outcome"] == "would be sent")
        return Plan(
            gateway=reached.gateway,
            group=group,
            keys=frozenset(keys),
            targets=tuple(sorted(targets.items())),
            failing=len(failing),
            why=failing[0]["outcome"] if failing else "",
            again=sum(mark is not None and mark.sure for mark in marks),
            maybe=sum(mark is not None and not mark.sure for mark in marks),
            missing=max(len(chosen) - len(rows), 0),
            marks=marks_before,
        )

    def begin(self, plan: Plan) -> Run:
        """Begins to send what was planned, and nothing else, on a thread of its own. One at a time. Raises AskError, also where some of
        it was sent since."""
        reached = self._allowed()
        with self._lock:
            if self._newest is not None and not self._newest.ended_ms:
                raise AskError("another replay is under way: wait for its end")
            if since := self._marked_since(plan):
                were = "was" if since == 1 else "were"
                raise AskError(f"{since:,} of these dead letters {were} sent meanwhile: ask again")
            run = Run(plan.group, len(plan.keys))
            thread = threading.Thread(target=self._run, args=(reached, plan, run), daemon=True, name="replay")
            thread.start()  # which may fail: then there was no replay
            self._newest = self._runs[plan.group] = run
            self._thread = thread
        return run

    def of(self, group: str) -> Run | None:
        """The group's newest since the console began."""
        return self._runs.get(group)

    def mark(self, group: str, place: Place) -> Mark | None:
        """Of a dead letter; None: this console did not send it again."""
        return self._mark((group, place.queue_id, place.queue_offset), {place.message_id})

    def stop(self) -> str:
        """Sends nothing more, behind the message that is under way. What became of a replay that this ended, in a sentence."""
        self._stopped.set()
        thread, run = self._thread, self._newest
        if thread is None or run is None or run.ended_ms:
            return ""
        thread.join(_STOP_S)
        more = "; one more may have been sent" if thread.is_alive() or run.maybe else ""
        return f"the replay of {run.group} was ended: {counted(run.sent, 'dead letter')} of {run.of:,} sent again{more}"

    def _allowed(self) -> Reached:
        if not self.allowed or self._reached is None:
            raise AskError("this console only reads: start it with --allow-replay and --gateway to replay")
        return self._reached

    def _run(self, reached: Reached, plan: Plan, run: Run) -> None:
        try:
            with overheard(), connected(reached.gateway, reached.token_file, reached.tls_ca) as calls:
                self._send(calls, plan, run)
        except Failure as failure:
            run.error = failure.message
        except Exception as error:  # else the page would show for ever that it goes on
            run.error = f"{type(error).__name__}: {error}"
        finally:
            run.ended_ms = now_ms()

    def _send(self, calls: GatewayCalls, plan: Plan, run: Run) -> None:
        sender = Sender(calls, _RATE, dry_run=False)
        places = {(queue_id, offset) for queue_id, offset, _ in plan.keys}
        waiting = set(plan.keys)
        for message in letters_at(calls, plan.group, places):
            if self._stopped.is_set():
                run.error = "the console was ended"
                return
            queue_id, offset, _ = key = key_of(message)
            if key not in waiting:
                continue
            waiting.remove(key)
            place = plan.group, queue_id, offset
            before = self._marked.get(place)
            self._set(place, ids_of(message), sure=False)
            run.maybe += 1
            row = sender.send(message)  # which raises where it does not know
            run.maybe -= 1
            if row["outcome"] == replay_outcomes.SENT:
                run.sent += 1
                self._set(place, ids_of(message), sure=True)
            else:
                run.failed += 1
                run.why = run.why or row["outcome"]
                self._unset(place, before)

    def _mark(self, place: tuple[str, int, int], ids: set[str]) -> Mark | None:
        with self._lock:
            found = self._marked.get(place)
        return None if found is None or found.ids.isdisjoint(ids) else found

    def _marked_since(self, plan: Plan) -> int:
        """How many of a plan were, or may have been, sent since it was made. Under the lock."""
        found = [self._marked.get((plan.group, queue_id, offset)) for queue_id, offset, _ in plan.keys]
        return sum(mark is not None and mark.number > plan.marks for mark in found)

    def _set(self, place: tuple[str, int, int], ids: set[str], *, sure: bool) -> None:
        with self._lock:
            self._marks += 1
            self._marked[place] = Mark(frozenset(ids), now_ms(), sure, self._marks)
            if len(self._marked) > _MOST_MARKED:
                self._marked.popitem(last=False)

    def _unset(self, place: tuple[str, int, int], before: Mark | None) -> None:
        """As it was before a sending that failed for sure."""
        with self._lock:
            if before is None:
                self._marked.pop(place, None)
            else:
                self._marked[place] = before
