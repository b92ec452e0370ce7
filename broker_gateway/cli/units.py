"""Times, sizes and texts as people write them in options: `500ms`, `64MiB`, `2026-11-25T08:00`; times that gateways answer."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from broker_gateway.cli.output import fail

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def seconds(option: str, text: str) -> float:
    """`500ms`, `1.5s`, `2m`, `1h` or `7d`; ends the command for anything else."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", text, re.ASCII)
    if found is None:
        fail(f"{option} {text}: write it as 500ms, 1s, 2m, 1h or 7d", 2)
    return float(found[1]) * _SECONDS[found[2]]


def size(option: str, text: str) -> int:
    """`64MiB`, `512KiB`, `1GiB` or a number of bytes, at least 1; ends the command for anything else."""
    found = re.fullmatch(r"(\d{1,15})(B|KiB|MiB|GiB)?", text, re.ASCII)
    if found is None or not int(found[1]):
        fail(f"{option} {text}: write it as 64MiB, 512KiB, 1GiB or a number of bytes", 2)
    return int(found[1]) * _BYTES[found[2] or ""]


def moment(option: str, text: str, *words: str) -> datetime | None:
    """`2026-11-25T08:00` or another ISO 8601 time, UTC where it names no zone; None for an empty text. Ends the command for
    anything else, and names the `words` that the option takes too."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        also = f", or {' or '.join(words)}" if words else ""
        fail(f"{option} {text} is no time; write one such as 2026-11-25T08:00{also}", 2)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def instant(seconds: int, microseconds: int = 0) -> datetime:
    """A time that a gateway answers, since 1970. Ends the command where it is beyond what has a date."""
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds, microseconds=microseconds)
    except OverflowError:
        fail(
            f"the gateway answers a time that has no date: {seconds} s and {microseconds} µs since 1970; is it a lakebroker?"
        )


def check_texts(*texts: str) -> None:
    """Ends the command for a name or key that no message can have: it is not UTF-8."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError:
            fail(f"{text!r} is no UTF-8 text; topics, groups, keys and ids are", 2)
