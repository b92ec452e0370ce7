"""Statements of a text, divided by semicolons where DuckDB's lexer sees one: not in a text, a quoted name or a comment."""

from __future__ import annotations

import duckdb

from structured_streaming.errors import LakeError


def divided(text: str) -> tuple[list[str], str]:
    """The statements that a semicolon ends, and what stands behind the last of them, "" for mere blanks and comments. Raises LakeError."""
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise LakeError(f"{text!r} is no UTF-8 text") from error
    found, begin, empty = [], 0, True
    for at, _ in duckdb.tokenize(text):
        if data[at : at + 1] != b";":
            empty = False
            continue
        if not empty:
            found.append(data[begin:at].decode().strip())
        begin, empty = at + 1, True
    rest = data[begin:].decode()
    return found, "" if empty and _is_closed(rest) else rest


def _is_closed(text: str) -> bool:
    """Whether a text without words is not the beginning of a comment."""
    return bool(duckdb.tokenize(f"{text}\n;"))
