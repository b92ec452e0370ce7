"""Questions to schema registries, each on a thread of its own: an answer may take a minute, and who is stopped meanwhile does not
wait for it.

| bounded | by |
|---|---|
| threads | `MOST_AT_ONCE`, one for a table; who waits for one is asked for later |
| how often | a table's registry is asked again `REGISTRY_S` after it answered, or did not |
| what one takes | `subject.py` |
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, wait
from threading import Lock, Thread
from typing import NamedTuple

from structured_streaming.registry.access import NOTHING, RegistryAccess
from structured_streaming.registry.subject import Registered, Registry
from structured_streaming.typed.declaration import Declaration

REGISTRY_S = 30.0
"""Between an answer and the next question of a table."""
MOST_AT_ONCE = 10
"""Registries that do not answer keep others from being asked for as long as a question takes at most."""


class Question(NamedTuple):
    """Of a declaration, about ids that it has not. `answer`: the schemas of its subject that it has not, or a LakeError."""

    declared: Declaration
    ids: frozenset[int]
    answer: Future[list[Registered]]


class Questions:
    """To the registries of a lake's typed topics, which `access` is for. For one thread at a time, which holds `turn`: a look at a lake
    that hangs may go on when the next query begins."""

    def __init__(self, access: RegistryAccess = NOTHING) -> None:
        self.turn = Lock()
        self._access = access
        self._under_way: dict[str, Question] = {}
        self._ask_at: dict[str, float] = {}

    def ask(self, declared: Declaration, ids: Iterable[int], *, now: bool = False) -> None:
        """Begins a question, unless one of the table is under way, or it is too early; `now`: it is not."""
        early = not now and time.monotonic() < self._ask_at.get(declared.table, 0.0)
        if early or declared.table in self._under_way or len(self._under_way) >= MOST_AT_ONCE:
            return
        question = Question(declared, frozenset(ids), Future())
        self._under_way[declared.table] = question
        Thread(target=self._run, args=(question,), daemon=True, name="registry").start()

    def answered(self, table: str, within_s: float) -> Question | None:
        """The question of a table once it is answered, which is over then; None where that takes longer, or none is under way."""
        question = self._under_way.get(table)
        if question is None or not wait([question.answer], max(within_s, 0.0)).done:
            return None
        return self._over(question)

    def all_answered(self) -> list[Question]:
        """Those that are answered by now; they are over then."""
        return [self._over(each) for each in list(self._under_way.values()) if each.answer.done()]

    def _over(self, question: Question) -> Question:
        del self._under_way[question.declared.table]
        self._ask_at[question.declared.table] = time.monotonic() + REGISTRY_S
        return question

    def _run(self, question: Question) -> None:
        declared = question.declared
        try:
            asked = Registry(declared.registry, declared.newest.message, self._access)
            found = asked.schemas([schema.id for schema in declared.schemas])
        except BaseException as error:  # whoever looks at the answer raises it
            question.answer.set_exception(error)
        else:
            question.answer.set_result(found)
