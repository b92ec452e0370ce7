"""Commands to clients and their answers, as TelemetryCommand."""

from __future__ import annotations

from typing import NamedTuple

from broker_gateway.api.grpc.codec import to_message
from broker_gateway.messaging.client_commands import (
    Answer,
    PrintStackTrace,
    Question,
    RecoverTransaction,
    Sent,
    UnsubscribeLite,
    Verdict,
    VerifyMessage,
)
from broker_gateway.messaging.stored_message import StoredMessage
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.log.record import decode_record

_VERDICTS = {
    pb.OK: Verdict.DONE,
    pb.FAILED_TO_CONSUME_MESSAGE: Verdict.CONSUMED_IN_VAIN,
    pb.MESSAGE_CORRUPTED: Verdict.CORRUPTED,
    pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED: Verdict.NOT_OF_FIFO,
}
"""Every other code is FAILED."""
_CODES = {verdict: code for code, verdict in _VERDICTS.items()} | {Verdict.FAILED: pb.INTERNAL_SERVER_ERROR}


class Answered(NamedTuple):
    """What a client says to a command of a kind."""

    nonce: str
    kind: type[Question]
    answer: Answer


def written(sent: Sent) -> rpc.TelemetryCommand:
    """A command as a client reads it. RecordError when its message cannot be read."""
    nonce, command = sent.nonce, sent.command
    if isinstance(command, PrintStackTrace):
        return rpc.TelemetryCommand(
            print_thread_stack_trace_command=rpc.PrintThreadStackTraceCommand(nonce=nonce)
        )
    if isinstance(command, VerifyMessage):
        message = _message(command.topic, command.message)
        return rpc.TelemetryCommand(
            verify_message_command=rpc.VerifyMessageCommand(nonce=nonce, message=message)
        )
    if isinstance(command, RecoverTransaction):
        return rpc.TelemetryCommand(
            recover_orphaned_transaction_command=rpc.RecoverOrphanedTransactionCommand(
                message=_message(command.topic, command.message), transaction_id=command.transaction_id
            )
        )
    if isinstance(command, UnsubscribeLite):
        return rpc.TelemetryCommand(
            notify_unsubscribe_lite_command=rpc.NotifyUnsubscribeLiteCommand(lite_topic=command.lite_topic)
        )
    return rpc.TelemetryCommand(reconnect_endpoints_command=rpc.ReconnectEndpointsCommand(nonce=nonce))


def answer_of(command: rpc.TelemetryCommand) -> Answered | None:
    """What a client answers; None when that is no answer. The official Node client answers VerifyMessageCommand with the
    command itself."""
    verdict = _VERDICTS.get(command.status.code, Verdict.FAILED)
    match command.WhichOneof("command"):
        case "thread_stack_trace":
            trace = command.thread_stack_trace
            return Answered(trace.nonce, PrintStackTrace, Answer(verdict, trace.thread_stack_trace))
        case "verify_message_result":
            return Answered(
                command.verify_message_result.nonce, VerifyMessage, Answer(verdict, command.status.message)
            )
        case "verify_message_command":
            return Answered(
                command.verify_message_command.nonce, VerifyMessage, Answer(verdict, command.status.message)
            )
    return None


def status_of_answer(answer: Answer) -> pb.Status:
    """As the client gave it."""
    return pb.Status(code=_CODES[answer.verdict], message=answer.text)


def _message(topic: str, stored: StoredMessage) -> pb.Message:
    """As a receive gives it, without handle and invisible time."""
    record = decode_record(stored.data, verify=False)
    message = to_message(
        topic,
        record,
        stored.properties,
        stored.message_id,
        handle="",
        attempt=record.reconsume_times + 1,
        invisible_ms=0,
    )
    for name in ("receipt_handle", "invisible_duration"):
        message.system_properties.ClearField(name)
    return message
