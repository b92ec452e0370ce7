"""How calls end: every reason is a code of the public API, and what is unexpected says no more than its kind."""

from __future__ import annotations

import pytest

from broker_gateway.api.grpc.status import status
from broker_gateway.api.remoting.outcomes import request_error
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError, outcome_of, refused_by_log
from broker_gateway.metadata.catalog import CatalogFullError
from broker_gateway.protocol.codes import ResponseCode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from store.errors import OffsetOutOfRangeError, StoreReadOnlyError


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_is_a_status_and_a_response(reason: Reason) -> None:
    assert status(Outcome(reason, "why")) == pb.Status(code=pb.Code.Value(reason.name), message="why")
    answer = request_error(ServiceError(reason, "why"))
    assert str(answer) == "why"
    assert answer.code in set(ResponseCode)


def test_reasons_that_remoting_has_codes_for() -> None:
    codes = {
        reason.name: ResponseCode(request_error(ServiceError(reason, "")).code).name for reason in Reason
    }
    assert {name: code for name, code in codes.items() if code != "SYSTEM_ERROR"} == {
        "BAD_REQUEST": "INVALID_PARAMETER",
        "CONSUMER_GROUP_NOT_FOUND": "SUBSCRIPTION_GROUP_NOT_EXIST",
        "FORBIDDEN": "NO_PERMISSION",
        "ILLEGAL_CONSUMER_GROUP": "INVALID_PARAMETER",
        "ILLEGAL_TOPIC": "INVALID_PARAMETER",
        "TOO_MANY_REQUESTS": "SYSTEM_BUSY",
        "TOPIC_NOT_FOUND": "TOPIC_NOT_EXIST",
    }
    assert request_error(CatalogFullError("full")).code == ResponseCode.SYSTEM_ERROR


def test_what_is_unexpected_is_not_told() -> None:
    found = outcome_of(ValueError("a password"))
    assert found.reason is Reason.INTERNAL_SERVER_ERROR
    assert "ValueError" in found.message
    assert "password" not in found.message
    assert "disk" in outcome_of(StoreReadOnlyError("the disk failed")).message
    assert outcome_of(ServiceError(Reason.OK, "OK")) == OK


@pytest.mark.parametrize("error", [OSError(28, "No space left"), OffsetOutOfRangeError("no segment")])
def test_what_the_log_does_not_take_is_not_done(error: Exception) -> None:
    with pytest.raises(ServiceError, match=r"is not done: .*no") as refused, refused_by_log():
        raise error
    assert refused.value.reason is Reason.INTERNAL_SERVER_ERROR
    with pytest.raises(KeyError), refused_by_log():
        raise KeyError("a defect is none of the log's")
