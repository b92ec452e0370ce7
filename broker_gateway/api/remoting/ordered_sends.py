"""Sends to message groups that another lakebroker hands over, since their queue is here."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.fields import Fields
from broker_gateway.runtime.reply import Reply
from broker_gateway.transport.remoting.connection import Connection, Processors


class OrderedSendRequests:
    """`send` takes a SendMessageRequest, its topic, the queue, and the address that it first came from."""

    def __init__(self, send: Callable[[bytes, str, int, str], Reply[bytes]]) -> None:
        self._send = send

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.LAKE_SEND_ORDERED, self.send)

    async def send(self, _: Connection, request: Command) -> Command:
        """The body is the request's, and the answer's the response to it."""
        fields = Fields(request.ext_fields)
        topic, queue_id = fields.name("topic"), fields.long("queueId")
        return request.reply(body=await self._send(request.body, topic, queue_id, fields.name("bornHost")))
