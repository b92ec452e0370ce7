"""JSON as fastjson writes and reads it.

Java's `Map<Long, …>` comes out with bare integer keys (`{0:"host:port"}`), which strict parsers refuse. The reader takes
them (and bare names); the writer emits them unless standard JSON is asked for. Keys are sorted, null members left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NamedTuple, NoReturn

from broker_gateway.protocol import json_slices
from broker_gateway.protocol.errors import BodyError

MAX_TOKENS = 3_000_000
"""Brackets and commas of a text: what bounds the memory of its values."""
_BARE_KEY = re.compile(
    r'("(?:[^"\\]|\\.)*+"?)'  # a whole string is passed over; one without an end is too, or this were quadratic
    r"|([{,]\s*+)(-?\d++|[A-Za-z_$][\w$]*+)(?=\s*+:)",
    re.DOTALL,
)
_INT64 = 1 << 63
_PLAIN = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))


class ObjectKeys(NamedTuple):
    """A map whose keys are objects themselves, as Java's `Map<MessageQueue, …>`: `{{"queueId":0}:1}`. Only written."""

    entries: Sequence[tuple[Mapping[str, Any], Any]]


def loads(data: bytes) -> Any:
    """Plain values of a JSON text. Raises BodyError."""
    if data.count(b",") + data.count(b"{") + data.count(b"[") > MAX_TOKENS:
        raise BodyError(f"JSON of {len(data)} bytes has more than {MAX_TOKENS} members; send less at a time")
    try:
        text = data.decode("utf-8")
        if len(text) > json_slices.WINDOW:
            return json_slices.read(text)
        try:
            return json.loads(text, parse_constant=_no_constant)
        except json.JSONDecodeError:
            return json.loads(_BARE_KEY.sub(_quoted, text), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BodyError(
            f"JSON of {len(data)} bytes cannot be read: {error or 'too deeply nested'}"
        ) from error


def _quoted(match: re.Match[str]) -> str:
    string, before, key = match.groups()
    return string if string is not None else f'{before}"{key}"'


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def dumps(value: Any, *, standard: bool = False) -> bytes:
    """JSON of plain values; `standard` quotes integer keys and escapes what is not ASCII."""
    quote = encode_basestring_ascii if standard else encode_basestring
    return _text(value, quote, standard).encode("utf-8", "replace")


def dumps_plain(value: Any) -> bytes:
    """As `dumps`, in a fraction of its time, of values with texts as keys and no null members."""
    return _PLAIN.encode(value).encode("utf-8", "replace")


def _text(value: Any, quote: Callable[[str], str], standard: bool) -> str:
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, Mapping):
        members = (
            f"{_key(key, quote, standard)}:{_text(value[key], quote, standard)}"
            for key in sorted(value)
            if value[key] is not None
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, ObjectKeys):
        pairs = (
            f"{_text(key, quote, standard)}:{_text(each, quote, standard)}" for key, each in value.entries
        )
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([_text(each, quote, standard) for each in value]) + "]"
    return json.dumps(value)


def _key(key: int | str, quote: Callable[[str], str], standard: bool) -> str:
    if isinstance(key, int):
        return f'"{key}"' if standard else str(key)
    return quote(key)


class JsonObject:
    """Typed access to an object's members. Every method raises BodyError naming the member."""

    __slots__ = ("_what", "members")

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise BodyError(f"{what} is {_shown(value)}, not a JSON object")
        self.members: dict[str, Any] = value
        self._what = what

    def text(self, name: str, default: str | None = None) -> str:
        value = self.members.get(name)
        if value is None:
            if default is None:
                raise BodyError(f"{self._what} has no {name}")
            return default
        if not isinstance(value, str):
            raise BodyError(f"{name} of {self._what} is {_shown(value)}, not a text")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self.members.get(name) is None else self.text(name)

    def integer(self, name: str, default: int) -> int:
        """A Java `long`, also written as a text."""
        value = self.members.get(name)
        if value is None:
            return default
        if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not -_INT64 <= value < _INT64:
            raise BodyError(f"{name} of {self._what} is {_shown(value)}, not an integer of 64 bits")
        return value

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.members.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise BodyError(f"{name} of {self._what} is {_shown(value)}, not true or false")
        return value

    def object(self, name: str) -> JsonObject:
        """An absent member is an empty object."""
        value = self.members.get(name)
        return JsonObject({} if value is None else value, f"{name} of {self._what}")

    def array(self, name: str) -> list[Any]:
        """An absent member is an empty array."""
        value = self.members.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise BodyError(f"{name} of {self._what} is {_shown(value)}, not an array")
        return value

    def texts(self, name: str) -> list[str]:
        """An array of texts."""
        found = self.array(name)
        for each in found:
            if not isinstance(each, str):
                raise BodyError(f"{name} of {self._what} holds {_shown(each)}, not a text")
        return found

    def text_map(self, name: str) -> dict[str, str]:
        """An object of texts."""
        inner = self.object(name)
        return {key: inner.text(key, "") for key in inner.members}

    def integer_keys(self, name: str) -> dict[int, str]:
        """Texts by integer, as `{0:"host:port"}`."""
        inner = self.object(name)
        found = {}
        for key in inner.members:
            if not re.fullmatch(r"-?\d{1,18}", key):
                raise BodyError(f"key {_shown(key)} in {name} of {self._what} is no integer")
            found[int(key)] = inner.text(key)
        return found


def _shown(value: Any) -> str:
    """A value as messages show it: short, whatever it is."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    if isinstance(value, int) and not -(1 << 200) < value < 1 << 200:
        return "a huge number"
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"
