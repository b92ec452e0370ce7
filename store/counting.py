"""How a number of things is said, in every line that a person reads."""

from __future__ import annotations


def counted(count: int, one: str, more: str = "") -> str:
    """A number of things: `1 file`, `2,000 files`; `more` is the plural where that is not `one` with an s."""
    return f"{count:,} {one if count == 1 else more or one + 's'}"
