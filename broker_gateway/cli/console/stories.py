"""Messages that were found, each once: with its copies among dead letters, and with what was sent again in its place."""

from __future__ import annotations

from collections.abc import Iterable

from broker_gateway.cli.console.facts import Story
from broker_gateway.cli.questions.rows import Row
from broker_gateway.cli.replaying import REPLAYED
from broker_gateway.metadata.names import DLQ_PREFIX

_DEAD = "dead_lettered"


def stories(messages: Iterable[Row], trace: Iterable[Row]) -> list[Story]:
    """Of rows of `MESSAGES` and `TRACE`, by message id, in the order in which ids come first. Of what was sent again, that which is
    among the messages."""
    found: dict[str, list[Row]] = {}
    events: dict[str, list[Row]] = {}
    again: dict[str, list[Row]] = {}
    for row in messages:
        found.setdefault(row["message_id"], []).append(row)
        if not _is_copy(row) and (before := again_from(row)):
            again.setdefault(before, []).append(row)
    for event in trace:
        events.setdefault(event["message_id"], []).append(event)
    return [
        Story(
            tuple([row for row in rows if not _is_copy(row)] or rows[:1]),
            tuple(row for row in rows if _is_copy(row)),
            tuple(events.get(message_id, ())),
            tuple(again.get(message_id, ())),
        )
        for message_id, rows in found.items()
    ]


def was_given_up(story: Story) -> bool:
    """Whether a group has it among its dead letters, as far as is known."""
    return bool(story.copies) or any(event["event"] == _DEAD for event in story.trace)


def again_from(row: Row) -> str:
    """The id of the message that was sent again as this one; empty for what is no replay."""
    return str(row["properties"].get(REPLAYED, ""))


def again_as(message_id: str, rows: Iterable[Row]) -> tuple[Row, ...]:
    """Those of messages that are replays of one."""
    return tuple(row for row in rows if not _is_copy(row) and again_from(row) == message_id)


def _is_copy(row: Row) -> bool:
    return str(row["topic"]).startswith(DLQ_PREFIX)
