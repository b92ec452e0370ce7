"""Large JSON texts, read piece by piece: a thread that reads one lets others run every few ms.

Python's reader keeps the interpreter to itself until it is done. Here it reads a window at a time: a value that ends
within it, or as many members of a larger one as it holds. Where neither can be, as with bare keys (`{0:"host:port"}`),
members are gone through one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

WINDOW = 32 << 10
"""Characters."""
MAX_DEPTH = 12
"""Of a value that is gone through: those within it end within a window."""
MAX_BARE_KEYS = 250_000
_SPACE = re.compile(r"[ \t\n\r]*+")
_BLANKS = frozenset(" \t\n\r")
_BARE_KEY = re.compile(r"-?\d{1,64}|[A-Za-z_$][\w$]{0,254}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_Scan = Callable[[str, int], tuple[Any, int]]
_scan: _Scan = json.JSONDecoder(parse_constant=_no_constant).scan_once  # type: ignore[attr-defined]


def read(text: str) -> Any:
    """Plain values of a JSON text. Raises ValueError or RecursionError."""
    reader = _Reader(text)
    value, end = reader.value(reader.skip(0), MAX_DEPTH)
    if reader.skip(end) < len(text):
        raise ValueError(f"more at character {end} than one value")
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._window = ""
        self._begin = 0
        self._bare_keys = 0
        self._tried = 0

    def skip(self, at: int) -> int:
        """Past white space, as far as there is much of it in several steps."""
        while (end := _SPACE.match(self._text, at, at + WINDOW).end()) == at + WINDOW:  # type: ignore[union-attr]
            at = end
        return end

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value that begins at a character, and where it ends."""
        kind = self._text[at : at + 1]
        if kind != "{" and kind != "[":
            return self._scalar(at)
        whole = self._within_window(at)
        if whole is not None:
            return whole
        if depth == 0:
            raise ValueError(
                f"nested more than {MAX_DEPTH} deep at character {at}, in a value of more than {WINDOW} characters"
            )
        return self._object(at, depth - 1) if kind == "{" else self._array(at, depth - 1)

    def _scalar(self, at: int) -> tuple[Any, int]:
        try:
            return _scan(self._text, at)
        except StopIteration:
            raise ValueError(f"no value at character {at}") from None

    def _within_window(self, at: int) -> tuple[Any, int] | None:
        """None when the value must be gone through."""
        for begin in (self._begin, at):
            if begin != self._begin or not self._window:
                self._begin, self._window = begin, self._text[begin : begin + WINDOW]
            if not 0 <= at - begin < len(self._window):
                continue
            try:
                value, end = _scan(self._window, at - begin)
            except StopIteration as error:
                stopped = error.value
            except json.JSONDecodeError as error:
                stopped = len(self._window) if error.msg.startswith("Unterminated") else error.pos
            else:
                return value, begin + end
            if stopped < len(self._window) - 16:
                return None  # a bare key, or no JSON, rather than the window's end
        return None

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        text = self._text
        found: dict[str, Any] = {}
        at = self.skip(at + 1)
        if text[at : at + 1] == "}":
            return found, at + 1
        while True:
            if (run := self._run(at, "{", "}")) is not None:
                found.update(run[0])
                at = run[1]
            key, at = self._key(at)
            if text[at : at + 1] != ":":
                at = self.skip(at)
                if text[at : at + 1] != ":":
                    raise ValueError(f"no ':' at character {at}")
            found[key], at = self.value(self._begun(at + 1), depth)
            at, is_last = self._ended(at, "}")
            if is_last:
                return found, at

    def _key(self, at: int) -> tuple[str, int]:
        if self._text[at : at + 1] == '"':
            return _scan(self._text, at)
        match = _BARE_KEY.match(self._text, at)
        if match is None:
            raise ValueError(f"no key at character {at}")
        self._bare_keys += 1
        if self._bare_keys > MAX_BARE_KEYS:
            raise ValueError(
                f"more than {MAX_BARE_KEYS} keys without quotes; send less at a time, or quote them"
            )
        return match.group(), match.end()

    def _array(self, at: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        at = self.skip(at + 1)
        if self._text[at : at + 1] == "]":
            return found, at + 1
        while True:
            if (run := self._run(at, "[", "]")) is not None:
                found += run[0]
                at = run[1]
            value, at = self.value(at, depth)
            found.append(value)
            at, is_last = self._ended(at, "]")
            if is_last:
                return found, at

    def _run(self, at: int, opening: str, closing: str) -> tuple[Any, int] | None:
        """Members that are whole within a window, up to a comma, and where the next one begins.

        A comma within a string or a smaller value leaves that open, which then is no JSON. What could not be read so is
        not tried again.
        """
        end = at + WINDOW
        if at < self._tried or end > len(self._text):
            return None
        for ending in ("},", "],", ","):
            cut = self._text.rfind(ending, at, end) + len(ending) - 1
            if cut <= at:
                continue
            part = f"{opening}{self._text[at:cut]}{closing}"
            try:
                value, read_to = _scan(part, 0)
            except (StopIteration, json.JSONDecodeError):
                continue
            if read_to == len(part):
                return value, self._begun(cut + 1)
        self._tried = end
        return None

    def _begun(self, at: int) -> int:
        """Where the next begins."""
        return self.skip(at) if self._text[at : at + 1] in _BLANKS else at

    def _ended(self, at: int, bracket: str) -> tuple[int, bool]:
        """Behind a member: where the next one begins, or where the value ends."""
        mark = self._text[at : at + 1]
        if mark in _BLANKS:
            at = self.skip(at)
            mark = self._text[at : at + 1]
        if mark == ",":
            return self._begun(at + 1), False
        if mark != bracket:
            raise ValueError(f"no ',' or '{bracket}' at character {at}")
        return at + 1, True
