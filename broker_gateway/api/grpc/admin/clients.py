"""ListConsumerConnection, GetConsumerRunningInfo, PrintThreadStackTrace, VerifyMessage."""

from __future__ import annotations

from broker_gateway.api.grpc.admin.messages import FoundMessages
from broker_gateway.api.grpc.admin.requests import (
    Named,
    client_info,
    filter_expression,
    message_queue,
)
from broker_gateway.api.grpc.client_commands import status_of_answer
from broker_gateway.api.grpc.status import OK
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.client_commands import PrintStackTrace, Verdict, VerifyMessage
from broker_gateway.messaging.clients import ClientSession
from broker_gateway.messaging.connections import Member
from broker_gateway.messaging.factory import Messaging
from broker_gateway.messaging.group_progress import Held
from broker_gateway.messaging.message_search import Wanted
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.observability.statistics import Statistics
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc

_MARGIN_S = 0.5
"""Of a call's deadline, kept for its answer."""


class ClientAdmin:
    """Tells of connected consumers, and asks them."""

    def __init__(
        self,
        named: Named,
        broker: str,
        messaging: Messaging,
        statistics: Statistics,
        messages: FoundMessages,
        timeout_s: float,
    ) -> None:
        """Clients have `timeout_s` for an answer."""
        self._named = named
        self._broker = broker
        self._registry = messaging.clients
        self._connections = messaging.connections
        self._commands = messaging.client_commands
        self._progress = messaging.progress
        self._statistics = statistics
        self._messages = messages
        self._timeout_s = timeout_s

    def list(self, request: rpc.ListConsumerConnectionRequest) -> rpc.ListConsumerConnectionResponse:
        """None when the group is not online. Of a lite topic: those that receive from it now."""
        group = self._named.group(request.group)
        topic = self._named.topic(request.topic).name if request.HasField("topic") else None
        lite = self._named.lite_topic(group, request.liteTopic) if request.HasField("liteTopic") else None
        members = [
            each
            for each in self._connections.members(group, lite)
            if topic is None or any(subscribed.topic == topic for subscribed in each.how.subscriptions)
        ]
        return rpc.ListConsumerConnectionResponse(status=OK, client_info=map(client_info, members))

    async def running_info(
        self, request: rpc.GetConsumerRunningInfoRequest
    ) -> rpc.GetConsumerRunningInfoResponse:
        """What the broker knows of a consumer: rates are of its group."""
        group = self._named.group(request.group)
        member = self._member(group, request.client_id)
        info = rpc.ConsumerRunningInfo(properties=_properties(member))
        topics = {each.topic for each in member.how.subscriptions}
        for each in member.how.subscriptions:
            info.subscriptions[each.topic].CopyFrom(filter_expression(each.expression, each.kind))
        for held in await self._progress.held(group, request.client_id):
            info.message_queue_table.append(self._queue(held))
            topics.add(held.topic)
        for topic in sorted(topics):
            status = info.consume_status_table[topic]
            status.receive_tps = self._statistics.rate("messages_out", (topic, group))
            status.consume_ok_tps = self._statistics.rate("acked", (topic, group))
        return rpc.GetConsumerRunningInfoResponse(status=OK, consumer_running_info=info)

    async def stack_trace(
        self, request: rpc.PrintThreadStackTraceRequest, context: CallContext
    ) -> rpc.PrintThreadStackTraceResponse:
        session = self._session(self._named.group(request.group), request.client_id)
        answer = await self._commands.ask(session, PrintStackTrace(), self._within_s(context))
        if answer.verdict is not Verdict.DONE:
            raise ServiceError(
                Reason.INTERNAL_SERVER_ERROR, f"client {shown(session.client_id)} gave no stack trace"
            )
        return rpc.PrintThreadStackTraceResponse(status=OK, thread_stack_trace=answer.text)

    async def verify(
        self, request: rpc.VerifyMessageRequest, context: CallContext
    ) -> rpc.VerifyMessageResponse:
        """Has a consumer consume a message once, beside its usual deliveries: nothing is settled. The status is the client's."""
        session = self._session(self._named.group(request.group), request.client_id)
        topic = self._named.topic(request.topic)
        if not request.message_id:
            raise ServiceError(Reason.ILLEGAL_MESSAGE_ID, "message_id is empty; name a message of the topic")
        found = await self._messages.one(topic, Wanted(message_id=request.message_id))
        command = VerifyMessage(topic.name, found.stored())
        answer = await self._commands.ask(session, command, self._within_s(context))
        return rpc.VerifyMessageResponse(status=status_of_answer(answer))

    def _session(self, group: str, client_id: str) -> ClientSession:
        """The consumer that is to be asked. BAD_REQUEST, NOT_FOUND."""
        _check_named(client_id)
        session = self._registry.consumer(group, client_id)
        if session is None or session.commands is None:
            raise ServiceError(
                Reason.NOT_FOUND,
                f"no consumer {shown(client_id)} of group {shown(group)} is connected over gRPC",
            )
        return session

    def _within_s(self, context: CallContext) -> float:
        left = context.remaining_s
        return self._timeout_s if left is None else max(0.0, min(self._timeout_s, left - _MARGIN_S))

    def _member(self, group: str, client_id: str) -> Member:
        _check_named(client_id)
        for each in self._connections.members(group):
            if each.client.client_id == client_id:
                return each
        raise ServiceError(
            Reason.NOT_FOUND, f"no consumer {shown(client_id)} of group {shown(group)} is connected"
        )

    def _queue(self, held: Held) -> rpc.MessageQueueItem:
        info = rpc.ProcessQueueInfo(
            commit_offset=held.committed,
            cached_msg_min_offset=held.first,
            cached_msg_max_offset=held.last,
            cached_msg_count=held.messages,
            last_pull_timestamp=held.delivered_ms,
        )
        queue = message_queue(held.topic, held.queue_id, self._broker)
        return rpc.MessageQueueItem(message_queue=queue, process_queue_info=info)


def _properties(member: Member) -> dict[str, str]:
    """Under the names of the original's ConsumerRunningInfo, where it has them."""
    client = member.client
    told = {
        "PROP_CONSUME_TYPE": member.how.consume_type,
        "PROP_CLIENT_VERSION": client.program or ("" if client.version is None else str(client.version)),
        "address": client.address,
        "consumeFromWhere": member.how.consume_from_where,
        "hostname": client.hostname,
        "language": client.language,
        "lastSeenTimestamp": str(client.seen_ms) if client.seen_ms else "",
        "messageModel": member.how.message_model,
    }
    return {name: value for name, value in told.items() if value}


def _check_named(client_id: str) -> None:
    if not client_id.strip():
        raise ServiceError(Reason.BAD_REQUEST, "client_id is empty; name a connected consumer of the group")
