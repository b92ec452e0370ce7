"""Text from elsewhere, as the page shows it: nothing in it hides or reorders what stands beside it, and it has an end."""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, datetime

from broker_gateway.runtime.printable import printable
from store.counting import counted

CELL = 200
"""Characters of a cell."""
BODY = 65_536
"""Bytes of a body."""
EXCERPT = 400
"""Bytes of a body that a list begins with."""
UNKNOWN = "unknown"
"""Of a figure that cannot be told."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def distinct(name: str, among: Collection[str]) -> str:
    """The name, with a number behind it where another that was cut looks the same."""
    made, number_of = name, 2
    while made in among:
        made, number_of = f"{name} ({number_of})", number_of + 1
    return made


def given(value: object, most: int) -> str:
    """What a tab says stands in a field, which may be anything: text without spaces around it, of at most so many characters."""
    return value[:most].strip() if isinstance(value, str) else ""


def shown(text: object, most: int = CELL) -> str:
    """Text of a cell: control, format and bidirectional characters as `\\u202e`, cut behind `most` characters. None is empty."""
    if text is None:
        return ""
    whole = str(text)
    cut = printable(whole[:most])
    return cut if len(whole) <= most else f"{cut}… ({len(whole):,} characters)"


def shown_body(body: bytes | None) -> str:
    """The beginning of a body, lines and tabs kept; what is no UTF-8 as `\\xff`."""
    if body is None:
        return ""
    return printable(body[:BODY].decode("utf-8", "backslashreplace"), keep="\n\t")


def excerpt(body: bytes | None) -> str:
    """What a list has of a body, in one line."""
    return shown(shown_body((body or b"")[:EXCERPT]).replace("\n", " "), 60)


def cut_said(count: int | None) -> str:
    """How large a body of so many bytes is, and what is shown of it; None: it is not known."""
    if count is None:
        return "no body is known"
    if count > BODY:
        return f"{count:,} bytes, of which the first {BODY:,} are shown"
    return counted(count, "byte")


def size(count: float | None) -> str:
    """Bytes for people; empty for None."""
    if count is None:
        return ""
    for unit in _UNITS[:-1]:
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} {_UNITS[-1]}"


def number(count: float | None) -> str:
    """A count with thousands divided; `unknown` for None."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def rate(per_s: float | None) -> str:
    """Per second; `unknown` for None, and for what is no number."""
    return UNKNOWN if per_s is None or not math.isfinite(per_s) else f"{per_s:,.1f}/s"


def duration(seconds: float | None) -> str:
    """As `3 d 4 h`, `12 min`, `1.5 s`; empty for None, `unknown` for what is no number."""
    if seconds is None:
        return ""
    if not math.isfinite(seconds):
        return "unknown"
    for unit, length, smaller, part in (
        ("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)
    ):  # fmt: skip
        if seconds >= length:
            rest = int(seconds % length // part)
            return f"{int(seconds // length)} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.1f} s"


def when(time: datetime | None) -> str:
    """To the millisecond, UTC; empty for None."""
    if time is None:
        return ""
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03d}"


def when_ms(ms: int) -> str:
    """Of milliseconds since the epoch; empty for 0 and for what is no time."""
    try:
        return when(datetime.fromtimestamp(ms / 1000, UTC)) if ms > 0 else ""
    except (ValueError, OverflowError, OSError):
        return ""
