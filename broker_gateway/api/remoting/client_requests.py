"""Requests that a consumer is to answer: what it does, and that it consumes a message at once. A gRPC client is asked over its
telemetry stream, a remoting client over its connection."""

from __future__ import annotations

from typing import Any

from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.administration.connections import running_info
from broker_gateway.api.remoting.administration.shown_records import shown_record
from broker_gateway.messaging.client_commands import Answer as ClientAnswer
from broker_gateway.messaging.client_commands import PrintStackTrace, Question, Verdict, VerifyMessage
from broker_gateway.messaging.clients import ClientSession
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.stored_message import StoredMessage
from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError, RequestTimeoutError, SendError
from broker_gateway.protocol.fields import Fields
from broker_gateway.transport.remoting.connection import Connection, Processors
from store.errors import RecordError
from store.log.record import decode_record

REMOTING_TIMEOUT_S = 10.0
"""As the original's Broker2Client waits."""
_MESSAGE_ID_DIGITS = (32, 56)
_RESULTS = {
    Verdict.DONE: "CR_SUCCESS",
    Verdict.CONSUMED_IN_VAIN: "CR_LATER",
    Verdict.CORRUPTED: "CR_RETURN_NULL",
}
"""Others have none."""


class ClientRequests:
    """Answers as the original's AdminBrokerProcessor and the proxy's ClientActivity."""

    def __init__(self, administration: Administration) -> None:
        self._admin = administration

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.GET_CONSUMER_RUNNING_INFO, self.running_info)
        processors.register(RequestCode.CONSUME_MESSAGE_DIRECTLY, self.consume_directly)

    async def running_info(self, _: Connection, request: Command) -> Command:
        """Of a gRPC client what the broker knows, with its stack trace where that is asked for."""
        fields = Fields(request.ext_fields)
        group, client_id = fields.text("consumerGroup"), fields.text("clientId")
        consumer = self._consumer(group, client_id)
        if isinstance(consumer, Connection):
            return await _forwarded(consumer, request, group, client_id)
        trace = None
        if fields.boolean("jstackEnable"):
            answer = await self._ask(consumer, PrintStackTrace())
            if answer.verdict is Verdict.NOT_OF_FIFO:
                raise RequestError("forbidden to verify message", ResponseCode.NO_PERMISSION)
            if answer.verdict is not Verdict.DONE:
                raise RequestError(f"client {client_id[:255]} gave no stack trace")
            trace = answer.text
        info = running_info(consumer, self._admin.ordered(group), trace)
        return request.reply(body=java_json.dumps(info))

    async def consume_directly(self, _: Connection, request: Command) -> Command:
        """The message is in the local log, named by the 4.x id. It stays what it is for its group: nothing is acked."""
        fields = Fields(request.ext_fields)
        group, client_id = fields.text("consumerGroup"), fields.text("clientId")
        record = self._admin.messages.record_at(_physical_offset(fields.text("msgId")))
        consumer = self._consumer(group, client_id)
        if isinstance(consumer, Connection):
            asked = {**request.ext_fields, "brokerName": self._admin.broker}
            forwarded = Command(request.code, asked, shown_record(record))
            return await _forwarded(consumer, request, group, client_id, forwarded)
        try:
            stored = StoredMessage(record).detached()
            topic = decode_record(stored.data, verify=False).topic
        except RecordError as error:
            raise RequestError(f"the message cannot be read: {error}") from error
        answer = await self._ask(consumer, VerifyMessage(topic, stored))
        result: dict[str, Any] = {"autoCommit": True, "order": False, "remark": "from gRPC client"}
        if answer.verdict in _RESULTS:
            result["consumeResult"] = _RESULTS[answer.verdict]
        return request.reply(body=java_json.dumps({**result, "spentTimeMills": 0}))

    def _consumer(self, group: str, client_id: str) -> ClientSession | Connection:
        """SYSTEM_ERROR when none is connected."""
        session = self._admin.clients.consumer(group, client_id)
        if session is not None:
            return session
        connection = self._admin.connections.consumer(group, client_id)
        if isinstance(connection, Connection):
            return connection
        raise RequestError(f"The Consumer <{group[:255]}> <{client_id[:255]}> not online")

    async def _ask(self, session: ClientSession, question: Question) -> ClientAnswer:
        try:
            return await self._admin.client_commands.ask(session, question, self._admin.client_timeout_s)
        except ServiceError as error:
            if error.reason is Reason.PROXY_TIMEOUT:
                raise RequestError(
                    f"call remote timeout: {error.message}", ResponseCode.SYSTEM_BUSY
                ) from error
            raise


async def _forwarded(
    connection: Connection, request: Command, group: str, client_id: str, forwarded: Command | None = None
) -> Command:
    """What a remoting client answers."""
    consumer = f"consumer <{group[:255]}> <{client_id[:255]}>"
    asked = forwarded or Command(request.code, request.ext_fields, request.body)
    try:
        answer = await connection.invoke(asked, REMOTING_TIMEOUT_S)
    except RequestTimeoutError as error:
        raise RequestError(f"{consumer} Timeout: {error}", ResponseCode.CONSUME_MSG_TIMEOUT) from error
    except SendError as error:
        raise RequestError(f"invoke {consumer} Exception: {error}") from error
    return request.reply(answer.code, remark=answer.remark, fields=answer.ext_fields, body=answer.body)


def _physical_offset(message_id: str) -> int:
    """The last 16 digits of a 4.x message id, behind its store host. INVALID_PARAMETER."""
    try:
        if len(message_id) not in _MESSAGE_ID_DIGITS:
            raise ValueError(message_id)
        return int.from_bytes(bytes.fromhex(message_id)[-8:], "big", signed=True)
    except ValueError as error:
        raise RequestError(
            f"message id {message_id[:64]!r} is none of 32 or 56 hex digits: name the message by its offset id",
            ResponseCode.INVALID_PARAMETER,
        ) from error
