"""Statuses of the public API, and the exception that carries one to the edge of a service."""

from __future__ import annotations

from collections.abc import Iterable

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.errors import StoreReadOnlyError

OK = pb.Status(code=pb.OK, message="OK")


class ServiceError(Exception):
    """A call, or one entry of it, that is answered with `code` and a sentence. Never leaves a service."""

    def __init__(self, code: pb.Code, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @property
    def status(self) -> pb.Status:
        return pb.Status(code=self.code, message=self.message)


def status_of(error: BaseException) -> pb.Status:
    """The status to answer for any exception; unexpected ones say no more than their kind."""
    if isinstance(error, ServiceError):
        return error.status
    if isinstance(error, StoreReadOnlyError):
        return pb.Status(code=pb.INTERNAL_SERVER_ERROR, message=str(error))
    return pb.Status(
        code=pb.INTERNAL_SERVER_ERROR,
        message=f"the broker could not complete the call ({type(error).__name__}); its log says more",
    )


def summary(statuses: Iterable[pb.Status]) -> pb.Status:
    """The status of a reply with entries: their code if they agree, else MULTIPLE_RESULTS; their sentence likewise."""
    found = list(statuses)
    codes = {status.code for status in found} or {pb.OK}
    code = pb.MULTIPLE_RESULTS if len(codes) > 1 else codes.pop()
    said = {status.message for status in found} if code not in (pb.OK, pb.MULTIPLE_RESULTS) else set()
    return pb.Status(code=code, message=said.pop() if len(said) == 1 else pb.Code.Name(code))
