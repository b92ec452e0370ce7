"""Text from elsewhere, made fit for a terminal: nothing in it can move the cursor, colour, hide or reorder what is shown."""

from __future__ import annotations

_JOINERS = "\u200c\u200d"
"""Parts of words and emoji in use; they show nothing by themselves."""


def printable(text: str, keep: str = "") -> str:
    """The text with control, format and unassigned characters as `\\x1b` or `\\u202e`; those in `keep` stay."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep or each in _JOINERS else ascii(each)[1:-1] for each in text
    )
