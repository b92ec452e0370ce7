"""Statements of SQL in one line, divided by semicolons as Spark's own shell divides them.

A semicolon in a text, a quoted name or a comment divides nothing. Nor does one behind a `BEGIN`, or a label and a
`BEGIN`: a block ends with its line.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    [rR](?:'[^']*(?:'|\Z)|"[^"]*(?:"|\Z))      # raw: no escapes
    | '(?:\\.|[^'\\])*(?:'|\Z) | "(?:\\.|[^"\\])*(?:"|\Z) | `[^`]*(?:`|\Z)
    | (?P<nothing> \s+ | --[^\n]* | (?P<comment>/\*) )
    | \w+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_BOUND = re.compile(r"/\*|\*/")


def statements(line: str) -> list[str]:
    """The statements of a line, without empty ones and mere comments; a text that is not closed is left to Spark to refuse."""
    found, begin, at = [], 0, 0
    words: list[str] = []
    while token := _TOKEN.match(line, at):
        at = _end_of_comment(line, token.end()) if token["comment"] else token.end()
        if token["nothing"]:
            continue
        if token.group() == ";":
            if words:
                found.append(line[begin : token.start()].strip())
            begin, words = at, []
            continue
        words.append(token.group())
        if len(words) in (1, 3) and words[-1].upper() == "BEGIN" and words[1:2] in ([], [":"]):
            return [*found, line[begin:].strip()]
    return [*found, line[begin:].strip()] if words else found


def _end_of_comment(line: str, at: int) -> int:
    """Where a comment ends whose text begins at `at`; those in it end first."""
    depth = 1
    while depth and (bound := _BOUND.search(line, at)):
        depth += 1 if bound.group() == "/*" else -1
        at = bound.end()
    return at if depth == 0 else len(line)
