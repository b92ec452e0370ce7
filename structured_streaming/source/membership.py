"""The logs of a watch that come and go, as name servers tell.

| a broker | its log |
|---|---|
| is found | is read from where the lake or Spark's offset has it, or from its beginning |
| serves elsewhere now | is read there |
| left the name servers | is read on while the broker answers, then no longer asked |
| is known, but does not say where it serves | stays where it was |

While no name server answers, all stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable

from structured_streaming.errors import SourceError
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
                raise SourceError(f"name servers {';'.join(self._addresses)} know no lakebroker{reasons}")
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

    def _changed(self, known: dict[str, str], found: Found) -> dict[str, str]:
        """Brings the watch up to date; returns what is known then."""
        for name, target in found.targets.items():
            before = known.get(name)
            if before == target:
                continue
            if before is not None:
                self._watch.drop(before)
            self._watch.add(target)
            now = "joined" if before is None else "serves elsewhere now"
            self._note(f"broker {name[:80]} {now}: {target.partition(':')[2]}")
        stay = {name: target for name, target in known.items() if name in found.left_out}
        for name, target in known.items():
            if name not in found.targets and name not in stay:
                self._watch.leave(target, f"broker {name[:80]} left the name servers")
        self._tell({name: why for name, why in found.left_out.items() if name not in known})
        return {**stay, **found.targets}

    def _tell(self, left_out: dict[str, str]) -> None:
        """Each reason once, until it is another."""
        for reason in left_out.values():
            if reason not in self._told:
                self._note(reason)
        self._told = set(left_out.values())
