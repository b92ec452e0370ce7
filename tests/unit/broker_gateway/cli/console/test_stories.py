"""Messages that were found, with what they were sent again from and as."""

from __future__ import annotations

from broker_gateway.cli.console.stories import again_as, again_from, stories, was_given_up
from broker_gateway.cli.questions.rows import Row


def row(message_id: str, topic: str = "orders", **properties: str) -> Row:
    return {"message_id": message_id, "topic": topic, "properties": properties}


def test_a_replay_and_what_it_was_sent_again_from_name_each_other() -> None:
    again = row("2", REPLAY_OF="1")
    found = stories([again, row("1", "%DLQ%g"), row("1")], [{"message_id": "1", "event": "dead_lettered"}])
    assert [story.messages[0]["message_id"] for story in found] == ["2", "1"]
    assert [(len(story.messages), len(story.copies), len(story.trace)) for story in found] == [
        (1, 0, 0),
        (1, 1, 1),
    ]
    assert found[1].again == again_as("1", [again, row("3")]) == (again,)
    assert (again_from(again), again_from(row("1"))) == ("1", "")
    assert [was_given_up(story) for story in found] == [False, True]


def test_a_dead_letter_of_a_replay_is_no_replay() -> None:
    (story,) = stories([row("2", "%DLQ%g", REPLAY_OF="1")], [])
    assert story.messages == story.copies
    assert again_as("1", story.copies) == ()
