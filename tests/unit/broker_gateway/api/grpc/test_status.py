"""Statuses of replies with entries, and the words that clients of the original look for."""

from __future__ import annotations

import pytest

from broker_gateway.api.grpc.send import send_response
from broker_gateway.api.grpc.settlement import ack_response
from broker_gateway.api.grpc.status import OK, status, summary
from broker_gateway.messaging.checks import check_invisible_ms
from broker_gateway.messaging.outcome import Outcome, Reason, ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

VOID = pb.Status(code=pb.INVALID_RECEIPT_HANDLE, message="receipt handle 'x' is void")
OTHER = pb.Status(code=pb.INVALID_RECEIPT_HANDLE, message="receipt handle 'y' is void")


@pytest.mark.parametrize(
    ("statuses", "code", "message"),
    [
        ([], pb.OK, "OK"),
        ([OK, OK], pb.OK, "OK"),
        ([VOID], pb.INVALID_RECEIPT_HANDLE, VOID.message),
        ([VOID, VOID], pb.INVALID_RECEIPT_HANDLE, VOID.message),
        ([VOID, OTHER], pb.INVALID_RECEIPT_HANDLE, "INVALID_RECEIPT_HANDLE"),
        ([VOID, OK], pb.MULTIPLE_RESULTS, "MULTIPLE_RESULTS"),
    ],
)
def test_the_status_of_a_reply_says_what_all_entries_say(
    statuses: list[pb.Status], code: pb.Code, message: str
) -> None:
    assert summary(statuses) == pb.Status(code=code, message=message)


def test_a_sentence_stands_in_the_entry_and_at_the_top() -> None:
    acked = ack_response([rpc.AckMessageEntry(message_id="m", receipt_handle="x")], [VOID])
    assert (acked.status.message, acked.entries[0].status.message) == (VOID.message, VOID.message)
    late = pb.Status(code=pb.MASTER_PERSISTENCE_TIMEOUT, message="not on disk after 5 s")
    sent = send_response(late, [b"m"], [0])
    assert (sent.status.message, sent.entries[0].status.message) == (
        late.message,
        late.message,
    )


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_a_code(reason: Reason) -> None:
    assert status(Outcome(reason, "why")) == pb.Status(code=pb.Code.Value(reason.name), message="why")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9_999, "the invisibleTime is too small. min is 10000"),
        (-1, "the invisibleTime is too small. min is 10000"),
        (43_200_001, "the invisibleTime is too large. max is 43200000"),
    ],
)
def test_invisible_times_are_refused_in_the_words_of_the_original(value: int, text: str) -> None:
    with pytest.raises(ServiceError) as caught:
        check_invisible_ms(value, 10_000, 43_200_000)
    assert (caught.value.reason, caught.value.message) == (Reason.ILLEGAL_INVISIBLE_TIME, text)


@pytest.mark.parametrize("value", [10_000, 43_200_000])
def test_invisible_times_at_the_limits_are_taken(value: int) -> None:
    assert check_invisible_ms(value, 10_000, 43_200_000) == value
