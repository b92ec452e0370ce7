"""What an outcome is on the remoting port: the one place where reasons become response codes."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable

from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.metadata.catalog import CatalogFullError
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.remoting.connection import Answer, Connection, Processor

_CODES = {
    Reason.BAD_REQUEST: ResponseCode.INVALID_PARAMETER,
    Reason.ILLEGAL_TOPIC: ResponseCode.INVALID_PARAMETER,
    Reason.ILLEGAL_CONSUMER_GROUP: ResponseCode.INVALID_PARAMETER,
    Reason.TOPIC_NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Reason.CONSUMER_GROUP_NOT_FOUND: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    Reason.TOO_MANY_REQUESTS: ResponseCode.SYSTEM_BUSY,
    Reason.FORBIDDEN: ResponseCode.NO_PERMISSION,
}
"""Every other reason is SYSTEM_ERROR."""


def request_error(error: ServiceError | CatalogFullError) -> RequestError:
    """The answer to a request that the broker refused."""
    if isinstance(error, CatalogFullError):
        return RequestError(str(error))
    return RequestError(error.message, _CODES.get(error.reason, ResponseCode.SYSTEM_ERROR))


def translated(processor: Processor) -> Processor:
    """The processor, whose refusals are answers."""

    def translate(connection: Connection, request: Command) -> Answer:
        try:
            answer = processor(connection, request)
        except (ServiceError, CatalogFullError) as error:
            raise request_error(error) from error
        return _awaited(answer) if inspect.isawaitable(answer) else answer

    return translate


async def _awaited(answer: Awaitable[Command | None]) -> Command | None:
    try:
        return await answer
    except (ServiceError, CatalogFullError) as error:
        raise request_error(error) from error
