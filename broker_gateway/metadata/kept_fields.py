"""Fields of a topic's or a group's configuration that the broker keeps and does not use itself: one text of JSON.

The text has its members sorted, and only ASCII, so that equal fields are equal texts; without fields it is empty. Fields
of newer brokers, whose meaning nobody here knows, are in it as they came.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 16 << 10
"""Of a topic, or a group."""
MOST_DEPTH = 32
"""Objects and arrays inside each other."""
_SHOWN = 80


class ConfigurationError(ValueError):
    """A configuration that makes no sense; the text names the field, the value, and what is allowed."""


def text_of(what: str, fields: Mapping[str, Any], *, strict: bool) -> str:
    """The text of these fields, of the topic or group that `what` names. Raises ConfigurationError.

    `strict` refuses numbers that JSON does not have, such as NaN, which Python reads in files.
    """
    if not fields:
        return ""
    for name, value in fields.items():
        _check_depth(what, name, value, MOST_DEPTH)
        if strict and not _finite(value):
            raise ConfigurationError(f"{name} of {what} holds a number beyond any that can be kept")
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    if len(text) > MOST_BYTES:
        name = max(fields, key=lambda each: len(json.dumps(fields[each])))
        raise ConfigurationError(
            f"the configuration of {what} has {len(text)} bytes that are only kept, most of them in {shown(name)}: "
            f"{MOST_BYTES} are allowed; shorten it"
        )
    return text


def fields_of(text: str) -> dict[str, Any]:
    """The fields of a text; those of a text that is no such text, which no broker of this kind wrote, are none."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def shown_fields(text: str) -> dict[str, Any]:
    """The fields as other programs may read them: null for a number that JSON does not have."""
    fields = fields_of(text)
    return fields if _finite(fields) else _without_others(fields)


def shown(value: object) -> str:
    """A value as an error says it: short, whatever it is."""
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'an array'} of {len(value)}"
    if isinstance(value, int) and not -(1 << 200) < value < 1 << 200:
        return "a huge number"
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def same(one: object, other: object) -> bool:
    """Whether two values are the same in JSON; unlike `==`, true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _check_depth(what: str, name: str, value: object, left: int) -> None:
    if not isinstance(value, dict | list):
        return
    if left == 0:
        raise ConfigurationError(f"{shown(name)} of {what} is nested more than {MOST_DEPTH} deep")
    for each in value.values() if isinstance(value, dict) else value:
        _check_depth(what, name, each, left - 1)


def _finite(value: object) -> bool:
    if isinstance(value, dict | list):
        return all(map(_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def _without_others(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_others(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_others(each) for each in value]
    return value if _finite(value) else None
