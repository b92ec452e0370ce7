"""Names and texts as SQL writes them."""

from __future__ import annotations


def literal(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


def name(text: str) -> str:
    """A name in SQL."""
    return '"' + text.replace('"', '""') + '"'
