"""Statements of SQL, divided by semicolons where Spark's lexer sees one.

A semicolon in a text, a quoted name, a comment or between dollar signs divides nothing. Nor does one in a block (`BEGIN`,
or a label and `BEGIN`): that ends with its own `END`, a label or none, and a semicolon. BEGIN opens a block where a statement
of a block begins, behind a label or a handler's conditions; END ends it behind a semicolon or a BEGIN. Elsewhere they are
names, or of a CASE. A block with names like `end` and `begin` in other places may be divided; Spark refuses its parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TOKEN = re.compile(
    r"""
    [rR](?:'[^']*(?:'|\Z)|"[^"]*(?:"|\Z))      # raw: no escapes
    | '(?:\\.|[^'\\])*+(?:'|\\?\Z) | "(?:\\.|[^"\\])*+(?:"|\\?\Z) | `[^`]*(?:`|\Z)
    | (?P<dollars>\$(?:[A-Za-z]\w*)?\$)
    | (?P<comment>/\*(?!\+))                   # with a plus it is a hint, whose words are words
    | (?P<nothing>\s+ | --(?:\\\n|[^\r\n])*)
    | \w+ | .
    """,
    re.VERBOSE | re.DOTALL,
)
_BOUND = re.compile(r"/\*(?!\+)|\*/")
_NOT_A_BLOCK = ("IF", "LOOP", "WHILE", "REPEAT", "FOR", "CASE")
"""What `END` ends beside BEGIN."""
_BEFORE_A_STATEMENT = (";", "BEGIN", "THEN", "ELSE", "DO", "LOOP", "REPEAT")
_OF_A_CASE = ("END", "WHEN", "ELSE")
"""A value of a CASE stands before them, not a block."""


def statements(text: str) -> list[str]:
    """The statements of a text, without empty ones and mere comments; what is not closed is left to Spark to refuse."""
    found, rest = divided(text)
    return [*found, rest.strip()] if rest else found


def divided(text: str) -> tuple[list[str], str]:
    """The statements that a semicolon ends, and what stands behind the last of them, "" for mere blanks and comments."""
    found, begin, at = [], 0, 0
    words: list[str] = []
    while token := _TOKEN.match(text, at):
        word, at = token.group().upper(), token.end()
        if token["comment"]:
            at, closed = _behind_comment(text, at)
            if closed:
                continue
        elif token["nothing"]:
            continue
        elif token["dollars"]:
            end = text.find(token.group(), at)
            at = end + len(word) if end >= 0 else len(text)
        if word != ";" or not _ends(words):
            words.append(word)
            continue
        if words:
            found.append(text[begin : token.start()].strip())
        begin, words = at, []
    return found, text[begin:] if words or text.endswith(
        "\\\n"
    ) else ""  # a comment of dashes may go on there


def _behind_comment(text: str, at: int) -> tuple[int, bool]:
    """Where a comment ends whose text begins at `at`, and whether it does; those in it end first."""
    depth = 1
    while depth and (bound := _BOUND.search(text, at)):
        depth += 1 if bound.group() == "/*" else -1
        at = bound.end()
    return (at, True) if depth == 0 else (len(text), False)


def _ends(words: Sequence[str]) -> bool:
    """Whether a semicolon behind these words ends the statement."""
    if words[:1] != ["BEGIN"] and words[1:3] != [":", "BEGIN"]:
        return True
    return "END" in words[-2:] and _open_blocks(words) <= 0


def _open_blocks(words: Sequence[str]) -> int:
    """How many blocks the words begin and do not end."""
    depth, first, before = 0, 0, ";"
    for at, (word, following) in enumerate(zip(words, [*words[1:], ""], strict=True)):
        labelled = before == ":" and at - first == 2
        if before in _BEFORE_A_STATEMENT:
            first = at
        if word == "BEGIN":
            opens = labelled or first == at or _is_handler(words[first:at])
            is_name = following in (":", ".") or (before in ("THEN", "ELSE") and following in _OF_A_CASE)
            depth += opens and not is_name
            before = word if opens and not is_name else ""
        elif word == "ATOMIC" and before == "NOT" and words[at - 2] == "BEGIN":
            before = "BEGIN"
        else:
            ends = before in (";", "BEGIN") and following not in (":", *_NOT_A_BLOCK)
            depth -= word == "END" and ends
            before = word
    return depth


def _is_handler(words: Sequence[str]) -> bool:
    """Whether a statement begins as `DECLARE EXIT HANDLER FOR ...` does."""
    return words[:1] == ["DECLARE"] and words[2:3] == ["HANDLER"]
