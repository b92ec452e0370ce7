"""Topics of brokers that went, which the tables still have: cleared a few at a time, for there may be a million.

They count for nobody any more and no route shows them; only lists of all topics name them until they are cleared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class TopicCleanup:
    """`drop` takes a topic and a broker name out of the tables; `later` is told when there is something to clear."""

    def __init__(self, drop: Callable[[str, str], None], later: Callable[[], None]) -> None:
        self._drop = drop
        self._later = later
        self._line: deque[tuple[str, dict[str, None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._line)

    def add(self, broker_name: str, topics: dict[str, None]) -> None:
        """The broker's topics are to be cleared; the dict is kept."""
        if topics:
            self._line.append((broker_name, topics))
            self._later()

    def clear(self, most: int) -> int:
        """Clears so many of them; how many there were."""
        cleared = 0
        while self._line and cleared < most:
            broker_name, topics = self._line[0]
            while topics and cleared < most:
                self._drop(topics.popitem()[0], broker_name)
                cleared += 1
            if not topics:
                self._line.popleft()
        return cleared
