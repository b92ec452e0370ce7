"""Calls of gRPC clients that another lakebroker passes on: sends to queues of this one, and what lite consumers subscribe to."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.fields import Fields
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.remoting.connection import Connection, Processors


class HandedOverRequests:
    """`send` takes a SendMessageRequest, its topic, the queue, and the address that it first came from; `subscribe` a
    SyncLiteSubscriptionRequest, its consumer group, the client's id and its address. Topic and group are those that the sender was
    checked for, and must be the call's. The body of a request is the client's, and the answer's the
    response to it."""

    def __init__(
        self,
        send: Callable[[bytes, str, int, str], Reply[bytes]],
        subscribe: Callable[[bytes, str, str, str], Reply[bytes]],
    ) -> None:
        self._send = send
        self._subscribe = subscribe

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.LAKE_SEND_ORDERED, self.send)
        processors.register(RequestCode.LAKE_LITE_SUBSCRIPTION, self.subscribe)

    async def send(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        topic, queue_id = fields.name("topic"), fields.long("queueId")
        return request.reply(body=await self._send(request.body, topic, queue_id, fields.name("bornHost")))

    async def subscribe(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        group, client_id, peer = (fields.name(each) for each in ("group", "clientId", "bornHost"))
        return request.reply(body=await self._subscribe(request.body, group, client_id, peer))
