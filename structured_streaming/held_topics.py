"""Topics whose messages stay although their time has run out, because a typed table of theirs could not have its turn.

A typed row goes with its message or before it. So the topic of a table that is damaged waits for it, and no other topic does. Where
not even its declaration can be read, the table's name tells the topic. A topic whose table was given another name is not known then,
and is not held: its rows go in the round after the table is whole again.
"""

from __future__ import annotations

from structured_streaming.typed.declaration import table_name


class HeldTopics:
    """Of one round of retention. `topics`, and `tables` whose topics are known by their names alone."""

    def __init__(self) -> None:
        self.topics: set[str] = set()
        self.tables: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self.topics or self.tables)

    def __contains__(self, topic: str) -> bool:
        return topic in self.topics or (bool(self.tables) and table_name(topic) in self.tables)

    def hold(self, place: object, table: str, topic: str | None) -> str:
        """Holds the topic of a typed table at `place`, None where it is not known; what is to be said of it, with the remedy."""
        if topic is None:
            self.tables.add(table)
        else:
            self.topics.add(topic)
        messages = (
            f"messages of topic {topic}" if topic is not None else f"messages of the topic of table {table}"
        )
        return (
            f"{messages} stay in all tables, those of other topics go; the next round looks again. Where {place} is damaged, restore it "
            f"from a copy, or remove its folder and declare the topic anew (lakebroker typed add {topic or 'TOPIC'} --from-beginning)"
        )
