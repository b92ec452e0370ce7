"""How a call ends, in the broker's own terms; each edge says it in those of its wire."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Final, NamedTuple

from store.errors import StoreError, StoreReadOnlyError


class Reason(enum.Enum):
    """Why a call, or one entry of it, is not served. Named as RocketMQ's public API names the same."""

    BAD_REQUEST = enum.auto()
    CLIENT_ID_REQUIRED = enum.auto()
    CONSUMER_GROUP_NOT_FOUND = enum.auto()
    FORBIDDEN = enum.auto()
    ILLEGAL_ACCESS_POINT = enum.auto()
    ILLEGAL_CONSUMER_GROUP = enum.auto()
    ILLEGAL_DELIVERY_TIME = enum.auto()
    ILLEGAL_FILTER_EXPRESSION = enum.auto()
    ILLEGAL_INVISIBLE_TIME = enum.auto()
    ILLEGAL_LITE_TOPIC = enum.auto()
    ILLEGAL_MESSAGE_GROUP = enum.auto()
    ILLEGAL_MESSAGE_ID = enum.auto()
    ILLEGAL_MESSAGE_KEY = enum.auto()
    ILLEGAL_MESSAGE_PROPERTY_KEY = enum.auto()
    ILLEGAL_MESSAGE_TAG = enum.auto()
    ILLEGAL_OFFSET = enum.auto()
    ILLEGAL_POLLING_TIME = enum.auto()
    ILLEGAL_TOPIC = enum.auto()
    INTERNAL_SERVER_ERROR = enum.auto()
    INVALID_RECEIPT_HANDLE = enum.auto()
    INVALID_TRANSACTION_ID = enum.auto()
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = enum.auto()
    LITE_TOPIC_QUOTA_EXCEEDED = enum.auto()
    MASTER_PERSISTENCE_TIMEOUT = enum.auto()
    MESSAGE_BODY_EMPTY = enum.auto()
    MESSAGE_BODY_TOO_LARGE = enum.auto()
    MESSAGE_CORRUPTED = enum.auto()
    MESSAGE_NOT_FOUND = enum.auto()
    MESSAGE_PROPERTIES_TOO_LARGE = enum.auto()
    MESSAGE_PROPERTY_CONFLICT_WITH_TYPE = enum.auto()
    NOT_FOUND = enum.auto()
    NOT_IMPLEMENTED = enum.auto()
    OFFSET_NOT_FOUND = enum.auto()
    OK = enum.auto()
    PAYLOAD_TOO_LARGE = enum.auto()
    PROXY_TIMEOUT = enum.auto()
    TOO_MANY_REQUESTS = enum.auto()
    TOPIC_NOT_FOUND = enum.auto()
    UNRECOGNIZED_CLIENT_TYPE = enum.auto()


class Outcome(NamedTuple):
    """A reason, and the sentence that goes with it."""

    reason: Reason
    message: str


OK: Final = Outcome(Reason.OK, "OK")


class ServiceError(Exception):
    """A call, or one entry of it, that is refused. Each edge answers it; it never leaves one."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message

    @property
    def outcome(self) -> Outcome:
        return Outcome(self.reason, self.message)


def outcome_of(error: BaseException) -> Outcome:
    """How a call ends that failed with it; unexpected errors say no more than their kind."""
    if isinstance(error, ServiceError):
        return error.outcome
    if isinstance(error, StoreReadOnlyError):
        return Outcome(Reason.INTERNAL_SERVER_ERROR, str(error))
    return Outcome(
        Reason.INTERNAL_SERVER_ERROR,
        f"the broker could not complete the call ({type(error).__name__}); its log says more",
    )


@contextlib.contextmanager
def refused_by_log() -> Iterator[None]:
    """What the log does not take is not done: INTERNAL_SERVER_ERROR."""
    try:
        yield
    except (StoreError, OSError) as error:
        raise ServiceError(
            Reason.INTERNAL_SERVER_ERROR, f"it could not be written to the log, and is not done: {error}"
        ) from error
