"""Scroll ids: where a query of messages goes on, and how many it has given, as a text for the client to send back.

Whoever sends one chose it: what is not of the form, or has a number that no place can have, is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple

from broker_gateway.lake.message_search import LakePlace
from broker_gateway.messaging.message_queries import Position
from broker_gateway.messaging.outcome import Reason, ServiceError

MAX_LENGTH = 1024
_VERSION = 1
_MOST = 1 << 62


class Scroll(NamedTuple):
    """A query that goes on."""

    position: Position
    given: int


def encode(scroll: Scroll) -> str:
    log_id, offset, in_lake, place = scroll.position
    parts = [_VERSION, scroll.given, log_id, offset, in_lake, None if place is None else list(place)]
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode()


def decode(text: str) -> Scroll:
    """BAD_REQUEST."""
    try:
        if len(text) > MAX_LENGTH:
            raise ValueError
        version, given, log_id, offset, in_lake, place = json.loads(
            base64.b64decode(text, altchars=b"-_", validate=True)
        )
        if version != _VERSION or not isinstance(log_id, str) or not isinstance(in_lake, bool):
            raise ValueError
        at = None if place is None else _place(place)
        return Scroll(Position(log_id, _number(offset), in_lake, at), _number(given))
    except (ValueError, TypeError, binascii.Error, RecursionError) as error:
        raise ServiceError(
            Reason.BAD_REQUEST, f"scroll_id {text[:40]!r} is none of an answer; send one back as it came"
        ) from error


def _place(value: list[object]) -> LakePlace:
    stored_us, log_id, offset = value
    if not isinstance(log_id, str):
        raise ValueError
    return LakePlace(_number(stored_us), log_id, _number(offset))


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError
    return value
