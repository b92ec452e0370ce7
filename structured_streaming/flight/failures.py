"""What goes wrong in a call, as a gRPC status: its code tells a client what to do, its text names value and remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

import grpc
import pyarrow as pa

from structured_streaming.embedded.apart import EngineEndedError
from structured_streaming.errors import LakeError, ReadOnlyError, is_away
from structured_streaming.storage.location import absolute

_SHOWN = 2000
"""Characters of a text: it travels in a header, and the engine's texts repeat the statement."""


class CallError(Exception):
    """A call is refused, or its work was ended."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


def bad(text: str) -> CallError:
    """Of a request that no later try helps."""
    return CallError(grpc.StatusCode.INVALID_ARGUMENT, text)


def too_many(text: str) -> CallError:
    """Of a bound that was reached."""
    return CallError(grpc.StatusCode.RESOURCE_EXHAUSTED, text)


def not_found(text: str) -> CallError:
    """Of a name that nothing has, or has any more."""
    return CallError(grpc.StatusCode.NOT_FOUND, text)


def only_reads(what: str) -> CallError:
    """Of what would change something."""
    return CallError(grpc.StatusCode.UNIMPLEMENTED, f"{what}: this server only reads; ask with SELECT")


class Hidden:
    """Places of the server that clients are not told, whoever's error names them: what stands for each, by its location."""

    def __init__(self, places: Mapping[str, str] = {}) -> None:
        self._stands_for = {
            text: stands_for
            for location, stands_for in places.items()
            for place in (location, absolute(location))
            for text in (place, quote(place, safe="/:"))
            if "/" in place.strip("./")
        }
        longest_first = sorted(self._stands_for, key=len, reverse=True)
        self._pattern = re.compile(
            rf"(?:file://)?(?<![\w.-])({'|'.join(map(re.escape, longest_first))})(?![\w-])"
        )

    def taken_out(self, text: str) -> str:
        """The text without them."""
        if not self._stands_for:
            return text
        return self._pattern.sub(lambda found: self._stands_for[found[1]], text)


def status_of(error: Exception, hidden: Hidden = Hidden()) -> tuple[grpc.StatusCode, str] | None:
    """Code and text of an expected failure, without what is `hidden`; None for any other."""
    if isinstance(error, ReadOnlyError):
        error = only_reads(error.kind)
    if isinstance(error, CallError):
        code = error.code
    elif isinstance(error, EngineEndedError) or is_away(error):
        code = grpc.StatusCode.UNAVAILABLE
    elif isinstance(error, LakeError | pa.ArrowException):
        code = grpc.StatusCode.INVALID_ARGUMENT
    else:
        return None
    text = hidden.taken_out(str(error))
    return code, text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
