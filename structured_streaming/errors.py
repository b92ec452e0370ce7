"""Errors of the Spark side; each message names what was wrong and what to do."""

from __future__ import annotations

import errno
import signal
from collections.abc import Iterator

_FOR_A_MOMENT = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOTCONN, errno.ESTALE)
"""Descriptors or memory are short, or a mount is away."""


def of_the_system(error: BaseException) -> bool:
    """Whether it says nothing of what was read: a full disk, say, or an object store that is away. Arrow raises plain OSErrors without a
    number for other reasons too."""
    return isinstance(error, MemoryError) or (
        isinstance(error, OSError) and (type(error) is not OSError or error.errno is not None)
    )


def with_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it came from, each once: one that is raised from an error that it caused leads back to itself."""
    seen = set[int]()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def is_away(error: BaseException) -> bool:
    """Whether it came of what may be there later, and so says nothing of what was asked for."""
    if isinstance(error, NotThereError) or (isinstance(error, OSError) and error.errno in _FOR_A_MOMENT):
        return True
    return error.__cause__ is not None and is_away(error.__cause__)


class LakeError(Exception):
    """Any of them."""


class LocationError(LakeError):
    """A lake location that cannot be used."""


class NoLakeError(LocationError):
    """A place where there is no lake, and where one can be made."""


class LacksTableError(LocationError):
    """A lake that lacks a table which can be made: it is being made or upgraded, or that was broken off."""


class SourceError(LakeError):
    """A log that cannot be read as asked."""


class ForeignWriterError(LakeError):
    """Another reput wrote the same lake; this one's batch was not committed."""


class TooMuchError(LakeError):
    """Rows that would not fit in memory together; made in parts they do."""


class SameBrokerError(SourceError):
    """Two logs of one broker name, of which a lake can hold only one; no later try helps."""


class GapError(SourceError):
    """A log that begins above what the lake holds of it; no later try helps."""


class LostDataError(SourceError):
    """A log that ends below what the lake holds of it; no later try helps."""


class NotThereError(Exception):
    """Of what is needed and may be there later."""


class UnreachableError(SourceError, NotThereError):
    """A log that does not answer now; it may later."""


class ObjectError(OSError):
    """An object store that did not do what it was asked; without an errno."""


class StoreAwayError(ObjectError, NotThereError):
    """An object store that does not answer now, or a lake's folder that is gone, with its mount, say; it may be there later."""


class CatalogAwayError(LocationError, NotThereError):
    """A catalog, or the place of its tables, that does not answer now; it may later."""


class SparkStartError(LakeError):
    """Spark that did not start."""


class JvmEndedError(LakeError):
    """Spark's JVM ended before its work did. `status` is as of `subprocess`: below 0 for a signal; `said` is the end of what
    it printed, which tells why where no signal ended it."""

    def __init__(self, status: int, said: str = "") -> None:
        killed = -status in set(signal.Signals)
        how = f"was killed by {signal.Signals(-status).name}" if killed else f"ended with status {status}"
        advice = " (by the system, where memory is short)" if -status == signal.SIGKILL else ""
        words = "" if killed or not said else f"; its output ends: {said}"
        super().__init__(f"Spark's JVM {how}{advice}{words}; what was committed stands")


class CutShortError(LakeError):
    """Spark's JVM, or its thread that returns a batch's manifest, ended before all rows had come."""


class StoppedError(LakeError):
    """A run that ends by itself was stopped by a signal before everything was read."""

    def __init__(self, number: int, reached: str) -> None:
        super().__init__(
            f"stopped by {signal.Signals(number).name} before everything was read: {reached}; run it again to go on"
        )
        self.number = number


class ReadOnlyError(LakeError):
    """A statement that may change something where only reading is allowed."""

    def __init__(self, kind: str, said: str = "") -> None:
        self.kind = kind
        super().__init__(
            said or f"{kind} may change data, and `lakebroker sql` only reads; give --write to allow it"
        )
