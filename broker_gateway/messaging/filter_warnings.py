"""Says once of a group what a tag expression selects that looks as if something else were meant."""

from __future__ import annotations

from broker_gateway.delivery.filters.tags import TagFilter
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.shares import host_of

MOST_KNOWN = 1024
_LINES = 8
"""At once for an address; groups are named by who receives."""


class FilterWarnings:
    """Expressions are taken as the original takes them; a warning says what that is. Of so many it is known, by their
    hashes, that they were said of a group and topic; the oldest are forgotten first, and the log itself is bounded
    for each address."""

    def __init__(self) -> None:
        self._said: dict[int, None] = {}
        self._log = PeerLog()

    def check(self, tags: TagFilter, group: str, topic: str, peer: str) -> None:
        """A group at address `peer` receives what `tags` lets through."""
        key = hash((group, topic, tags.doubtful))
        if key in self._said:
            return
        if len(self._said) >= MOST_KNOWN:
            del self._said[next(iter(self._said))]
        self._said[key] = None
        selected = [repr(tag[:80]) for tag in sorted(tags.tags)[:8]]
        self._log.warning(
            host_of(peer),
            "a tag expression selects only messages with exactly these tags; only `||` divides tags",
            lines=_LINES,
            group=group,
            topic=topic,
            tags=selected,
            doubtful=[repr(tag[:80]) for tag in tags.doubtful[:8]],
        )
