"""A lake that answers when the test says so."""

from __future__ import annotations

import threading
from pathlib import Path

from broker_gateway.lake.messages import LakeMessages, Stretch
from broker_gateway.lake.reader import Lake
from tests.support.waiting import until


class SlowLake(LakeMessages):
    """Each call waits until `goes_on`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Lake(str(folder / "lake")), "b")
        self.goes_on = threading.Event()
        self.asked: list[tuple[str, str, int]] = []
        self.error: Exception | None = None

    def read(self, topic: str, queue_id: int, begin: int, end: int, most_bytes: int) -> Stretch:
        self._slow("read", topic, begin)
        return Stretch(begin, begin + 1, [begin], [b"x"], 1)

    def first(self, topic: str, queue_id: int, begin: int, end: int) -> int | None:
        return self._slow("first", topic, 7)

    def at_time(self, topic: str, queue_id: int, begin: int, end: int, timestamp_ms: int) -> int | None:
        return self._slow("at_time", topic, timestamp_ms)

    async def was_asked(self, count: int) -> None:
        """Waits until so many calls were made."""
        await until(lambda: len(self.asked) >= count, lambda: self.asked, every_s=0.001)

    def _slow(self, what: str, topic: str, value: int) -> int:
        self.asked.append((what, topic, value))
        self.goes_on.wait()
        if self.error is not None:
            raise self.error
        return value
