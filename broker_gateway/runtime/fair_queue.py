"""A line in which addresses take turns, so that one with many calls does not keep those of others waiting."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out for each address; the addresses one after the other."""

    def __init__(self) -> None:
        self._by_host: OrderedDict[str, deque[T]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[T]:
        for line in self._by_host.values():
            yield from line

    def append(self, host: str, item: T) -> None:
        """At the end of what the address has in line."""
        line = self._by_host.get(host)
        if line is None:
            line = self._by_host[host] = deque()
        line.append(item)
        self._length += 1

    @property
    def hosts(self) -> int:
        """How many addresses have something in line."""
        return len(self._by_host)

    @property
    def next_host(self) -> str:
        """The address that is next. Raises StopIteration when there is none."""
        return next(iter(self._by_host))

    def pass_over(self) -> None:
        """Puts the address that is next behind the others. Raises StopIteration when there is none."""
        self._by_host.move_to_end(self.next_host)

    def pop(self) -> T:
        """The next one; its address is last in turn then. Raises KeyError when there is none."""
        host, line = self._by_host.popitem(last=False)
        item = line.popleft()
        self._length -= 1
        if line:
            self._by_host[host] = line
        return item
