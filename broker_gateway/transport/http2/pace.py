"""How much of the event loop a peer gets: frames are served for a share of each tick, floods are turned away.

| what | bound |
|---|---|
| all | the connections of an address get QUANTUM_S of a tick, or ALONE_S while no other address has work; the rest waits for later ticks, in which the addresses alternate |
| large requests | none in a tick that has lasted for CROWDED_S: with many addresses each brings one |
| SETTINGS | 100 at once, 20 a second |
| WINDOW_UPDATE, PRIORITY, acknowledged PING | 10,000 at once, 1,000 a second, and one for each 4 bytes sent to the peer |

The engine bounds empty DATA and CONTINUATION frames, sizes of header blocks and resets of its own making.
"""

from __future__ import annotations

import time
from typing import Protocol

from broker_gateway.runtime.clock import monotonic_s
from broker_gateway.runtime.fair_queue import FairQueue
from broker_gateway.runtime.tick import Stage, Tick

QUANTUM_S = 0.0015
"""What the connections of an address may take of a tick; what they have beyond it is deferred."""
ALONE_S = 0.004
"""The same, of an address that had the turn before for itself: the fewer ticks, the less each call costs."""
TICK_S = 0.003
"""What may be done of a tick of what was deferred, for all addresses."""
CROWDED_S = 0.005
"""Who sends large requests in a tick that has lasted for longer is put off; one address does not fill it alone."""
_SETTINGS, _SETTINGS_A_S = 100, 20.0
_OVERHEAD, _OVERHEAD_A_S, _BYTES_EACH = 10_000, 1000.0, 4


class Backlogged(Protocol):
    """A connection, or a call, with work that waits for its turn; `host` is its peer's, see `shares.network_of`."""

    @property
    def host(self) -> str: ...

    def go_on(self, until: float) -> None:
        """Does some of it, up to a time; what is still left is deferred again."""


class Share:
    """What the connections of one address take of the ticks.

    An address that took more than its share of a tick, by one large request perhaps, waits for as many ticks longer.
    """

    __slots__ = ("_number", "_pace", "_tick", "connections", "host", "spent")

    def __init__(self, host: str, tick: Tick, pace: Pace) -> None:
        self.host = host
        self._tick = tick
        self._pace = pace
        self._number = -1  # of the tick that `spent` is of
        self.spent = 0.0
        """Seconds of this tick, and what was too much in those before."""
        self.connections = 0

    def until(self, now: float) -> float:
        """Up to when a connection may serve, by the monotonic clock; `now` or before it: not in this tick."""
        number = self._tick.number
        if self._number != number:
            self._pace.begin(number)
            self.lapse(number)
        return now + self._pace.quantum - self.spent

    def lapse(self, number: int) -> None:
        """What was spent, in the tick of that number: less by one share for each tick since."""
        if self.spent:
            self.spent = max(0.0, self.spent - self._pace.quantum * (number - self._number))
        self._number = number

    def took(self, seconds: float) -> None:
        """Adds what a connection took of this tick; `until` was asked before."""
        self.spent += seconds
        if self.spent > self._pace.quantum:
            self._pace.waits(self)


class Pace:
    """Shares the ticks of the event loop between the addresses that connections come from."""

    def __init__(self, tick: Tick) -> None:
        self._tick = tick
        self._shares: dict[str, Share] = {}
        """Of addresses that have connections, or owe."""
        self._owing: dict[str, Share] = {}
        self._waiting: FairQueue[Backlogged] = FairQueue()
        self._scheduled = False
        self._number = -1  # of the last tick in which an address had work
        self._addresses = 0  # that had some in it
        self.quantum = ALONE_S
        """What an address may take of that tick, s."""

    def share(self, host: str) -> Share:
        """The share of `host`, for one more connection."""
        share = self._shares.get(host)
        if share is None:
            share = self._shares[host] = Share(host, self._tick, self)
        share.connections += 1
        return share

    def leave(self, share: Share) -> None:
        """A connection is gone; what its address owes is kept until it has waited for it."""
        share.connections -= 1
        self._forget(share)

    def _forget(self, share: Share) -> None:
        if not share.connections and share.host not in self._owing:
            self._shares.pop(share.host, None)

    def begin(self, number: int) -> None:
        """One more address has work in the tick of that number."""
        if self._number == number:
            self._addresses += 1
            self.quantum = QUANTUM_S
        else:
            self.quantum = ALONE_S if self._addresses < 2 else QUANTUM_S
            self._number, self._addresses = number, 1

    def waits(self, share: Share) -> None:
        """An address took more than its share: the ticks go on until it has waited for that."""
        self._shares.setdefault(share.host, share)  # its last connection may be gone
        if not self._owing:
            self._tick.add(Stage.READ, self._pay)
        self._owing[share.host] = share

    def _pay(self) -> None:
        for share in list(self._owing.values()):
            share.lapse(self._tick.number)
            if share.spent <= self.quantum:
                del self._owing[share.host]
                self._forget(share)
        if self._owing:
            self._tick.add(Stage.READ, self._pay)

    @property
    def crowded(self) -> bool:
        """Whether so much was done in this tick that large requests are put off to others."""
        return self._tick.scheduled and monotonic_s() - self._tick.began > CROWDED_S

    def defer(self, connection: Backlogged) -> None:
        """Lets `connection` go on in a later tick; addresses take turns, and so do the connections of one."""
        self._waiting.append(connection.host, connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._tick.add(Stage.READ, self._go_on)

    def _go_on(self) -> None:
        """The addresses that have something left of their shares take turns, as far as the time goes."""
        self._scheduled = False
        now = time.monotonic()
        end, passed = now + TICK_S, 0
        try:
            while passed < self._waiting.hosts and now < end:
                share = self._share_of(self._waiting.next_host)
                until = share.until(now)
                if until <= now:
                    self._waiting.pass_over()
                    passed += 1
                    continue
                passed = 0
                self._waiting.pop().go_on(min(until, end))
                after = time.monotonic()
                share.took(after - now)
                now = after
        finally:
            if self._waiting:
                self._schedule()

    def _share_of(self, host: str) -> Share:
        """Of a host whose connections may be gone."""
        return self._shares.get(host) or Share(host, self._tick, self)


class Overhead:
    """Frames of one connection that carry nothing; `settings` and `other` say whether one more, at `now`, is too many."""

    __slots__ = ("_other", "_other_at", "_settings", "_settings_at", "sent")

    def __init__(self, now: float) -> None:
        self._settings = self._other = 0.0
        self._settings_at = self._other_at = now
        self.sent = 0
        """Bytes sent to the peer since an `other` came."""

    def settings(self, now: float) -> bool:
        self._settings = max(0.0, self._settings - (now - self._settings_at) * _SETTINGS_A_S) + 1
        self._settings_at = now
        return self._settings > _SETTINGS

    def other(self, now: float) -> bool:
        earned = (now - self._other_at) * _OVERHEAD_A_S + self.sent / _BYTES_EACH
        self._other = max(0.0, self._other - earned) + 1
        self._other_at, self.sent = now, 0
        return self._other > _OVERHEAD
