"""Statuses of the public API: what an outcome is there. Reasons have the names of its codes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from broker_gateway.messaging.outcome import OK as SERVED
from broker_gateway.messaging.outcome import Outcome, outcome_of
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

OK: Final = pb.Status(code=pb.OK, message="OK")


def status(outcome: Outcome) -> pb.Status:
    """An outcome as a status."""
    if outcome is SERVED:
        return OK
    return pb.Status(code=outcome.reason.name, message=outcome.message)


def status_of(error: BaseException) -> pb.Status:
    """The status to answer for any exception; unexpected ones say no more than their kind."""
    return status(outcome_of(error))


def summary(statuses: Iterable[pb.Status]) -> pb.Status:
    """The status of a reply with entries: their code if they agree, else MULTIPLE_RESULTS; their sentence likewise."""
    found = list(statuses)
    codes = {status.code for status in found} or {pb.OK}
    code = pb.MULTIPLE_RESULTS if len(codes) > 1 else codes.pop()
    said = {status.message for status in found} if code not in (pb.OK, pb.MULTIPLE_RESULTS) else set()
    return pb.Status(code=code, message=said.pop() if len(said) == 1 else pb.Code.Name(code))
