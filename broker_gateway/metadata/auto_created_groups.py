"""Consumer groups that were made on first use: how many there may be, in all and of one address.

Groups of administrators do not count, and one that an administrator changes is theirs from then on. That a group was
made on first use is journaled; from which address, is known until a restart. Groups of before it are nobody's, and an
address has its share of the places that they leave: others find some, however often the broker starts.
"""

from __future__ import annotations

LEAST_SHARED = 16
"""Fewer places are not shared out."""
_EARLIER = ""


class AutoCreatedGroups:
    """Counts them; at most `limit`, of which an address has `percent` beyond the first half."""

    def __init__(self) -> None:
        self._by_host: dict[str, int] = {}
        self.count = 0
        self.configure(20_000, 25)

    def configure(self, limit: int, percent: int) -> None:
        """Takes other limits; groups that are there stay."""
        self._limit = limit
        self._percent = percent

    def refusal(self, name: str, host: str) -> str | None:
        """Why `host` must not make the group `name` by using it; None: it may."""
        remedy = (
            f"create {name!r} with `lakebroker group create {name}`, delete groups that nobody needs "
            "(mqadmin deleteSubGroup), or raise "
        )
        if self.count >= self._limit:
            return (
                f"{self.count} consumer groups were made on first use (lakeMaxAutoCreatedGroups={self._limit}); "
                f"{remedy}the option"
            )
        earlier, own = self._by_host.get(_EARLIER, 0), self._by_host.get(host, 0)
        places = self._limit - earlier
        is_shared = places >= LEAST_SHARED and self._percent < 100
        crowded = self.count - earlier >= places // 2
        if is_shared and crowded and own >= places * self._percent // 100:
            return (
                f"{own} consumer groups were made on first use by {host}, its share of what "
                f"lakeMaxAutoCreatedGroups={self._limit} leaves (lakeMaxSharePerAddress={self._percent}); "
                f"{remedy}one of the options"
            )
        return None

    def changed(self, before: str | None, after: str | None) -> None:
        """A group was made, changed or deleted: `Group.first_used_by` before and after; None also without a group."""
        for host, change in ((before, -1), (after, 1)):
            if host is None:
                continue
            self.count += change
            left = self._by_host.get(host, 0) + change
            if left:
                self._by_host[host] = left
            else:
                del self._by_host[host]
