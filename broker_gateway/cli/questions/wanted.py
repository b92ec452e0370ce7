"""What is asked for, and who answers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol

from broker_gateway.cli.questions.letters import Choice
from broker_gateway.cli.questions.rows import Row


class Wanted(NamedTuple):
    """Which messages; empty or None: all. `key`: one of a message's keys, or its id. Times are inclusive. At most `most`."""

    most: int
    key: str = ""
    topic: str = ""
    tag: str = ""
    queue: int | None = None
    since: datetime | None = None
    until: datetime | None = None


class Answers(Protocol):
    """Who answers. What fails ends the command, or raises LakeError."""

    cut_off: list[str]
    """Why an answer lacks what it might have."""

    @property
    def named(self) -> str:
        """Who it is, for people."""

    def messages(self, wanted: Wanted) -> list[Row]:
        """The newest first: rows of `MESSAGES`."""

    def trace(self, wanted: Wanted) -> list[Row]:
        """What happened to the messages of an id or a key, each message's in order: rows of `TRACE`."""

    def lag(self, group: str, topic: str) -> list[Row]:
        """By group, topic, broker and queue: rows of `LAG`; an empty name: of all."""

    def dead_letters(self, group: str, choice: Choice, most: int) -> list[Row]:
        """By group, broker and queue, of each the oldest first: rows of `DEAD_LETTERS`. Ends the command for a group that is
        none."""

    def age(self) -> str:
        """How old answers are that are not as of now; else empty."""

    def nothing_read(self) -> str:
        """Why whatever is asked for is not there: no log was read yet. Empty where one was."""

    def looked(self, topic: str) -> str:
        """Where it was looked for messages, and how far back, behind `no message …`."""


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows of a trace."""
    return sorted(rows, key=lambda row: (row["message_id"], row["event_timestamp"]))
