"""Consumer groups that were made on first use: how many there may be, and on how many queues, in all and of one address.

A group counts for the address that used it first, which is journaled with it; so does every queue that it has a
position on, from whichever address it is received. Groups of administrators do not count, and one that an
administrator changes is theirs from then on.
"""

from __future__ import annotations

from broker_gateway.runtime.shares import Shares


class AutoCreatedGroups:
    """Counts them. `refusal` and `refusal_of_queues` say why there may not be more, None where there may."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        """By group, those alone that were made on first use."""
        self._queues_of: dict[str, int] = {}
        """Of every group, also of deleted ones that have positions still."""
        self.groups = _Bound("consumer groups made on first use", "lakeMaxAutoCreatedGroups", 20_000)
        self.queues = _Bound(
            "queues received from by consumer groups made on first use",
            "lakeMaxAutoCreatedGroupQueues",
            500_000,
        )

    def configure(self, groups: int, queues: int, percent: int) -> None:
        """Sets other limits. Groups that are already there stay, even beyond them."""
        self.groups.configure(groups, percent)
        self.queues.configure(queues, percent)

    def refusal(self, name: str, host: str) -> str | None:
        """Of the group `name`, made on first use by `host`."""
        return self.groups.refusal(name, host, 1)

    def refusal_of_queues(self, name: str, more: int) -> str | None:
        """Of so many queues that a group begins to receive from; an administrator's has them."""
        host = self._hosts.get(name)
        return None if host is None else self.queues.refusal(name, host, more)

    def set_group(self, name: str, host: str) -> None:
        """A group is made, changed or deleted: `Group.first_used_by`; empty also where there is no group."""
        before, queues = self._hosts.pop(name, None), self._queues_of.get(name, 0)
        if before is not None:
            self.groups.add(before, -1)
            self.queues.add(before, -queues)
        if host:
            self._hosts[name] = host
            self.groups.add(host, 1)
            self.queues.add(host, queues)

    def count_queues(self, name: str, change: int) -> None:
        """A group has a position on so many more queues, or fewer."""
        left = self._queues_of.get(name, 0) + change
        if left:
            self._queues_of[name] = left
        else:
            del self._queues_of[name]
        host = self._hosts.get(name)
        if host is not None:
            self.queues.add(host, change)


class _Bound:
    """How many of something there are: at most `limit`, of which an address has `percent` beyond the first half."""

    def __init__(self, what: str, option: str, limit: int) -> None:
        self._what = what
        self._option = option
        self._shares = Shares()
        self.count = 0
        self.configure(limit, 100)

    def configure(self, limit: int, percent: int) -> None:
        """Takes other limits."""
        self._limit, self._percent = limit, percent
        self._shares.share_out(limit, percent)

    def add(self, host: str, change: int) -> None:
        """A host has so many more, or fewer."""
        self.count += change
        self._shares.count(host, change)

    def refusal(self, group: str, host: str, more: int) -> str | None:
        """Why a host may not have so many more for a group; None where it may."""
        if self.count + more > self._limit:
            there = f"there are {self.count} {self._what}"
            options = f"{self._option}={self._limit}"
        elif self._shares.refuse(host, self.count, more):
            there = f"of {host} there are {self._shares.of(host)} {self._what}, its share"
            options = f"{self._option}={self._limit}, lakeMaxSharePerAddress={self._percent}"
        else:
            return None
        return (
            f"{there} ({options}), and {group!r} wants {more} more; create it with "
            f"`lakebroker group create {group}`, delete groups that nobody needs (mqadmin deleteSubGroup -r true), "
            "or raise the limit"
        )
