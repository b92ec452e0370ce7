"""Who calls."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller: the host it calls from, whether that is this machine, and what it shows of itself."""

    host: str
    loopback: bool
    shown: str = field(default="", repr=False)
    """The `authorization` that came with the call; a secret."""
