"""How the bytes of a batch are divided among logs."""

from __future__ import annotations

from collections.abc import Mapping


def fair_shares(backlogs: Mapping[str, int], room: int) -> dict[str, int]:
    """Bytes for each log, at most its backlog, together at most `room` (but at least one each).

    The smallest backlogs are served whole, the others alike: no log's catching up delays another's new records.
    """
    shares: dict[str, int] = {}
    for name, backlog in sorted(backlogs.items(), key=lambda each: each[1]):
        alike = room // (len(backlogs) - len(shares))
        shares[name] = min(backlog, max(alike, 1))
        room = max(room - shares[name], 0)
    return shares
