"""Which bulkhead a remoting request counts in: the one of the executor that serves it in the original.

Source: `BrokerController.registerProcessor`; whatever it does not name is served by the admin executor.
"""

from __future__ import annotations

import asyncio
import inspect

from broker_gateway.messaging.admission import Admission, Bulkhead
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.connection import Answer, Connection, Processor


def bulkhead_of(admission: Admission, code: int) -> Bulkhead:
    """The bulkhead of requests with this code."""
    match code:
        case RequestCode.PULL_MESSAGE:
            return admission.pull
        case RequestCode.QUERY_MESSAGE | RequestCode.VIEW_MESSAGE_BY_ID:
            return admission.query
        case RequestCode.LAKE_SEND_ORDERED:
            return admission.send
        case RequestCode.HEART_BEAT:
            return admission.heartbeat
        case RequestCode.UNREGISTER_CLIENT:
            return admission.client_manager
        case (
            RequestCode.GET_CONSUMER_LIST_BY_GROUP
            | RequestCode.UPDATE_CONSUMER_OFFSET
            | RequestCode.QUERY_CONSUMER_OFFSET
        ):
            return admission.consumer_manager
        case _:
            return admission.admin_broker


def admitted(bulkhead: Bulkhead, processor: Processor) -> Processor:
    """The processor, whose requests count in the bulkhead; SYSTEM_BUSY when one cannot be taken now."""

    def admit(connection: Connection, request: Command) -> Answer:
        try:
            bulkhead.check(connection.peer)
        except ServiceError as error:
            raise RequestError(
                f"[OVERLOAD]system busy, start flow control for a while: {error.message}",
                ResponseCode.SYSTEM_BUSY,
            ) from error
        answer = processor(connection, request)
        if not inspect.isawaitable(answer):
            return answer
        serving = asyncio.ensure_future(answer)
        entered = bulkhead.enter(connection.peer)
        serving.add_done_callback(lambda _: bulkhead.leave(entered))
        return serving

    return admit
