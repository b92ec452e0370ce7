"""Options of the data source, validated; the table is in `data_source.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from store.delay_levels import parse_delay_levels
from structured_streaming.errors import SourceError
from structured_streaming.source.access import access_of
from structured_streaming.source.logs import targets
from structured_streaming.source.name_servers import name_servers

MAX_BYTES_PER_TRIGGER = 256 << 20
PARTITION_BYTES = 32 << 20
LEAST_BYTES = 1024


class SourceOptions:
    """What the options say. Raises SourceError."""

    def __init__(self, options: Mapping[str, str]) -> None:
        raw = {key.lower(): value for key, value in options.items()}
        self.targets = targets(raw)
        self.name_servers = name_servers(raw)
        self.access = access_of(raw)
        self.max_bytes_given = "maxbytespertrigger" in raw
        self.max_bytes = _bytes(raw, "maxBytesPerTrigger", MAX_BYTES_PER_TRIGGER)
        self.partition_bytes = _bytes(raw, "partitionBytes", PARTITION_BYTES)
        self.notes = raw.get("notes", "")
        self.delay_levels = _delay_levels(raw.get("messagedelaylevel", ""))
        self.log_ids: dict[str, str] = {}
        """Of brokers whose offsets name their log."""
        starting = raw.get("startingoffsets", "earliest")
        self.starting: str | dict[str, int] = (
            starting
            if starting in ("earliest", "latest")
            else _offsets("startingOffsets", starting, self.log_ids)
        )
        ending = raw.get("endingoffsets", "latest")
        self.ending: dict[str, int] | None = (
            None if ending == "latest" else _offsets("endingOffsets", ending, self.log_ids)
        )


def _bytes(raw: Mapping[str, str], name: str, default: int) -> int:
    text = raw.get(name.lower(), str(default))
    if not text.isascii() or not text.isdigit() or int(text) < LEAST_BYTES:
        raise SourceError(f"option {name}={text} is not a number of bytes of at least {LEAST_BYTES}")
    return int(text)


def _delay_levels(text: str) -> tuple[int, ...] | None:
    try:
        return parse_delay_levels(text) if text else None
    except ValueError as error:
        raise SourceError(f"option messageDelayLevel={text}: {error}") from error


def _offsets(name: str, text: str, log_ids: dict[str, str]) -> dict[str, int]:
    """Offsets by broker, each a number or with its log as in a stream's offsets; adds the latter to `log_ids`."""
    found = {}
    try:
        for broker, given in json.loads(text).items():
            if isinstance(given, dict):
                log_ids[broker] = str(given["log_id"])
                given = given["offset"]
            found[str(broker)] = int(given)
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        words = "earliest, latest" if name == "startingOffsets" else "latest"
        raise SourceError(f'option {name}={text}: give {words} or JSON such as {{"broker-a": 0}}') from error
    if negative := [broker for broker, offset in found.items() if offset < 0]:
        raise SourceError(f"option {name}={text}: the offset of {negative[0]} is negative; the least is 0")
    return found
