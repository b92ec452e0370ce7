"""Statements of SQL in one line, divided by semicolons as Spark's own shell divides them.

A semicolon in a text, a quoted name or a comment divides nothing, nor one of a `BEGIN ... END` block.
"""

from __future__ import annotations

import re

_PART = re.compile(
    r"""
    (?<!\w)[rR](?:'[^']*(?:'|\Z)|"[^"]*(?:"|\Z))      # raw: no escapes
    | '(?:\\.|[^'\\])*(?:'|\Z) | "(?:\\.|[^"\\])*(?:"|\Z) | `[^`]*(?:`|\Z)
    | --[^\n]* | /\*.*?(?:\*/|\Z)
    | ;
    """,
    re.VERBOSE | re.DOTALL,
)
_NOTHING = re.compile(r"(?:\s+|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
"""Between semicolons: no statement."""
_BLOCK = re.compile(r"\s*BEGIN\b", re.IGNORECASE)


def statements(line: str) -> list[str]:
    """The statements of a line, without empty ones and mere comments; a text that is not closed is left to Spark to refuse."""
    if _BLOCK.match(line):
        return [line]
    found, begin = [], 0
    for part in _PART.finditer(line):
        if part.group() == ";":
            found.append(line[begin : part.start()].strip())
            begin = part.end()
    return [each for each in (*found, line[begin:].strip()) if not _NOTHING.fullmatch(each)]
