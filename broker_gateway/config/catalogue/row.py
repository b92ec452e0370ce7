"""What a row of the table says of an option of RocketMQ 5.5.0: its type and default, and what becomes of it here."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

HIDDEN = "******"
"""Stands for a secret."""


class Kind(enum.Enum):
    """The original's types; the value is what documentation calls it."""

    BOOL = "boolean"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    TEXT = "text"


class Fate(enum.Enum):
    """What becomes of an option here."""

    EFFECTIVE = "effective"
    ACCEPTED = "accepted without effect"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`why` an option has no effect, or is refused unless its value is one of `allowed` (none: the default)."""

    fate: Fate
    why: str = ""
    allowed: tuple[str, ...] = ()


class Row(NamedTuple):
    """`default` is the original's, as text; None where it has none or works one out. What `is_secret` is never shown."""

    name: str
    kind: Kind
    default: str | None
    verdict: Verdict
    is_secret: bool = False

    def shown(self, value: str) -> str:
        """A value as people may see it."""
        return HIDDEN if self.is_secret and value else value
