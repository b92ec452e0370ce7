"""Errors of the Spark side; each message names what was wrong and what to do."""

from __future__ import annotations


class LakeError(Exception):
    """Any of them."""


class LocationError(LakeError):
    """A lake location that cannot be used."""


class SourceError(LakeError):
    """A log that cannot be read as asked."""


class ForeignWriterError(LakeError):
    """Another reput wrote the same lake; this one's batch was not committed."""


class TooMuchError(LakeError):
    """Rows that would not fit in memory together; made in parts they do."""


class UnreachableError(SourceError):
    """A log that does not answer now; it may later."""


class ReadOnlyError(LakeError):
    """A statement that may change something where only reading is allowed."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"{kind} may change data, and `lakebroker sql` only reads; give --write to allow it")
