"""`Opened` opens an engine for a test; `Seen` records the statements that a watch supervised."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.running import Running, Watch

Opened = Callable[..., EmbeddedEngine]


class Seen(Watch):
    """`seen`: the statements that it has supervised; `held`: those that it still does."""

    def __init__(self, stuck: Callable[[Running], None] | None = None) -> None:
        super().__init__(stuck)
        self.seen: list[Running] = []
        self.held: set[Running] = set()

    @contextlib.contextmanager
    def over(self, running: Running) -> Iterator[None]:
        self.seen.append(running)
        with super().over(running):
            self.held.add(running)
            try:
                yield
            finally:
                self.held.discard(running)
