"""Dead letters sent again by the page: counted first, then done as it was counted, and only where the command allows it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from broker_gateway.cli import replay_outcomes
from broker_gateway.cli.console.asking import ANSWERS_S
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.gateway_calls import Reached, connected, within
from broker_gateway.cli.output import Failure, overheard
from broker_gateway.cli.questions.letters import Choice, letters, queues_of
from broker_gateway.cli.replaying import Sender, key_of

MOST = 1_000
"""Dead letters of one replay; `lakebroker dlq replay` has no such limit."""
_RATE = 100.0
"""Messages a second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be sent again: `targets` are topics and how many go there; `failing` cannot be sent, and why of one of them."""

    gateway: str
    group: str
    keys: frozenset[replay_outcomes.Key]
    targets: tuple[tuple[str, int], ...]
    failing: int
    why: str


@dataclass(frozen=True, slots=True)
class Done:
    """What became of it. `why`: of the first that failed."""

    sent: int
    failed: int
    why: str


class Replays:
    """`allowed`: by `--allow-replay`. Without it every call is refused, whoever calls."""

    def __init__(self, reached: Reached | None, allowed: bool) -> None:
        self._reached = reached
        self.allowed = allowed and reached is not None
        self._one = threading.Lock()

    def plan(self, group: str, ids: Iterable[str]) -> Plan:
        """What a replay of these dead letters would do; no ids: of all of the group. Sends nothing. Raises AskError."""
        wanted = frozenset(ids)
        rows, keys, gateway = self._sent(group, Choice("", "", wanted, None, None), None, dry_run=True)
        failing = [row for row in rows if row["outcome"] != "would be sent"]
        targets = Counter(row["topic"] for row in rows if row["outcome"] == "would be sent")
        if not rows:
            raise AskError(f"{group} has no such dead letter at {gateway}")
        why = failing[0]["outcome"] if failing else ""
        return Plan(gateway, group, frozenset(keys), tuple(sorted(targets.items())), len(failing), why)

    def send(self, plan: Plan) -> Done:
        """Sends what was planned, and nothing else. One at a time. Raises AskError."""
        if not self._one.acquire(blocking=False):
            raise AskError("another replay is under way: wait for its end")
        try:
            every = Choice("", "", frozenset(), None, None)
            rows, _, _ = self._sent(plan.group, every, plan.keys, dry_run=False)
        finally:
            self._one.release()
        failed = [row for row in rows if row["outcome"] != replay_outcomes.SENT]
        return Done(len(rows) - len(failed), len(failed), failed[0]["outcome"] if failed else "")

    def _sent(
        self, group: str, choice: Choice, only: frozenset[replay_outcomes.Key] | None, *, dry_run: bool
    ) -> tuple[list[dict[str, str]], list[replay_outcomes.Key], str]:
        """What became of each, and which they were."""
        if not self.allowed or self._reached is None:
            raise AskError("this console only reads: start it with --allow-replay and --gateway to replay")
        rows: list[dict[str, str]] = []
        keys: list[replay_outcomes.Key] = []
        reached = self._reached
        try:
            with (
                overheard(),
                within(ANSWERS_S),
                connected(reached.gateway, reached.token_file, reached.tls_ca) as calls,
            ):
                sender = Sender(calls, _RATE, dry_run)
                for message in letters(calls, group, queues_of(calls, group), choice):
                    key = key_of(message)
                    if only is not None and key not in only:
                        continue
                    if len(rows) >= MOST:
                        raise AskError(
                            f"more than {MOST:,} dead letters: choose fewer, or use `lakebroker dlq replay {group}`"
                        )
                    rows.append(sender.send(message))
                    keys.append(key)
        except Failure as failure:
            sent = sum(row["outcome"] == replay_outcomes.SENT for row in rows)
            behind = f" ({sent} were sent before that)" if sent else ""
            raise AskError(f"{failure.message}{behind}") from None
        return rows, keys, reached.gateway
