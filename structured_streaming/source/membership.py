"""The logs of a watch that come and go, as name servers tell.

| a broker | its log |
|---|---|
| is found | is read from where the lake or Spark's offset has it, or from its beginning |
| serves elsewhere now | is read there |
| joins with a log of a name that is read already | is left out |
| left the name servers | is read on while the broker answers, then no longer asked |
| is known, but does not say where it serves | stays where it was |

While no name server answers, all stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from store.log_source import LogState
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.log_watch import LogWatch
from structured_streaming.source.name_servers import Following, Found, NameServers


class Membership:
    """Keeps `watch` as the name servers tell; only the thread that owns the watch calls it.

    With `fixed`, the brokers of the first look are all.
    """

    def __init__(
        self, addresses: list[str], watch: LogWatch, note: Callable[[str], None], *, fixed: bool
    ) -> None:
        self._name_servers = NameServers(addresses) if addresses else None
        self._addresses = addresses
        self._watch = watch
        self._note = note
        self._fixed = fixed
        self._known: dict[str, str] | None = None
        """Targets by broker name."""
        self._joined: set[str] = set()
        """Targets that were not there at the first look."""
        self._told: set[str] = set()
        self._answer = True
        self._following: Following | None = None

    def update(self) -> None:
        """What the last look found; the first time it looks itself. Raises SourceError when that fails."""
        if self._name_servers is None:
            return
        if self._known is None:
            found = self._name_servers.look()
            for target in found.targets.values():
                self._watch.add(target)
            self._tell(found.left_out)
            if not self._watch.targets:
                reasons = "".join(f"; {each}" for each in found.left_out.values())
                raise UnreachableError(
                    f"name servers {';'.join(self._addresses)} know no lakebroker{reasons}"
                )
            self._known = dict(found.targets)
            if not self._fixed:
                self._following = Following(self._name_servers)
            return
        newest = self._following.newest() if self._following is not None else None
        if isinstance(newest, SourceError):
            if self._answer:
                self._note(f"{newest}; the brokers that are known are read on")
            self._answer = False
        elif newest is not None:
            if not self._answer:
                self._note("a name server answers again")
            self._answer = True
            self._known = self._changed(self._known, newest)

    def stop(self) -> None:
        """It looks no more."""
        if self._following is not None:
            self._following.stop()

    def accepted(self, states: dict[str, LogState]) -> dict[str, LogState]:
        """The states without those of brokers that joined under the name of one that is read already.

        They are no longer asked: what one broker does ends no job of the others.
        """
        first = {state.broker: target for target, state in states.items() if target not in self._joined}
        taken = {}
        for target, state in states.items():
            holder = first.setdefault(state.broker, target)
            if holder == target or target not in self._joined:
                taken[target] = state
                continue
            self._watch.drop(target)
            self._note(
                f"broker {target.partition(':')[2]} is left out: its log is of broker {state.broker[:80]!r}, which is "
                f"read from {holder.partition(':')[2]}; give each broker a brokerName of its own before its first start"
            )
        return taken

    def _changed(self, known: dict[str, str], found: Found) -> dict[str, str]:
        """Brings the watch up to date; returns what is known then."""
        stay = {name: target for name, target in known.items() if name in found.left_out}
        now = {**stay, **found.targets}
        used = set(now.values())
        for name, before in known.items():
            if before in used:
                continue
            if name in now:
                self._watch.drop(before)
            else:
                self._watch.leave(before, f"broker {name[:80]} left the name servers")
        for name, target in found.targets.items():
            if known.get(name) != target:
                self._watch.add(target)
                self._joined.add(target)
                did = "serves elsewhere now" if name in known else "joined"
                self._note(f"broker {name[:80]} {did}: {target.partition(':')[2]}")
        self._joined &= used
        self._tell({name: why for name, why in found.left_out.items() if name not in known})
        return now

    def _tell(self, left_out: dict[str, str]) -> None:
        """Each reason once, until it is another."""
        for reason in left_out.values():
            if reason not in self._told:
                self._note(reason)
        self._told = set(left_out.values())
