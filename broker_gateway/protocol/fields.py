"""Typed access to a request's ext fields; what is missing or wrong is answered to the peer."""

from __future__ import annotations

import re
from collections.abc import Mapping

from broker_gateway.protocol.errors import RequestError

_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_INT64 = 1 << 63
_INT32 = 1 << 31


class Fields:
    """Every method raises RequestError, which names the field."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def optional_text(self, name: str) -> str | None:
        return self._fields.get(name)

    def text(self, name: str) -> str:
        value = self._fields.get(name)
        if value is None:
            raise RequestError(f"the custom field <{name}> is null")
        return value

    def name(self, name: str, longest: int = 255) -> str:
        """A name or address: not empty, printable, at most `longest` characters."""
        value = self.text(name)
        if not 0 < len(value) <= longest or not value.isprintable():
            raise RequestError(f"{name} {value[:80]!r}: 1 to {longest} printable characters are allowed")
        return value

    def optional_name(self, name: str, longest: int = 255) -> str | None:
        """A name or address; None when it is absent or empty."""
        return self.name(name, longest) if self._fields.get(name) else None

    def optional_long(self, name: str) -> int | None:
        """A Java `long`."""
        return self._number(name, _INT64)

    def long(self, name: str) -> int:
        self.text(name)
        return self._number(name, _INT64) or 0

    def small(self, name: str, default: int = 0) -> int:
        """A Java `int`."""
        number = self._number(name, _INT32)
        return default if number is None else number

    def optional_boolean(self, name: str) -> bool | None:
        """`true` in any case is true, everything else false, as in Java."""
        value = self._fields.get(name)
        return None if value is None else value.lower() == "true"

    def boolean(self, name: str, default: bool = False) -> bool:
        value = self.optional_boolean(name)
        return default if value is None else value

    def _number(self, name: str, limit: int) -> int | None:
        value = self._fields.get(name)
        if value is None:
            return None
        number = int(value) if _NUMBER.fullmatch(value) else limit
        if not -limit <= number < limit:
            raise RequestError(f"{name} {value[:80]!r} is no integer of {limit.bit_length()} bits")
        return number
