"""Remoting requests with what is plugged in around them."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial

from broker_gateway.api.extensions import Extensions, Outcome, Rpc
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.transport.context import RpcError
from broker_gateway.transport.remoting.connection import Answer, Connection, Processor


def extended(extensions: Extensions, code: int, processor: Processor) -> Processor:
    """The processor of a code with authenticators and interceptors around it; NO_PERMISSION when one refuses.

    The processor itself where there are none.
    """
    if not extensions.sees_calls:
        return processor
    path = f"/remoting/{RequestCode(code).name}"

    def around(connection: Connection, request: Command) -> Answer:
        rpc = Rpc(path, connection.peer, request.ext_fields, request)
        try:
            extensions.before(rpc)
        except RpcError as error:
            raise RequestError(error.message, ResponseCode.NO_PERMISSION) from error
        try:
            answer = processor(connection, request)
        except Exception as error:
            extensions.after(rpc, Outcome(error=error))
            raise
        if inspect.isawaitable(answer):
            serving = asyncio.ensure_future(answer)
            serving.add_done_callback(partial(_ended, extensions, rpc))
            return serving
        extensions.after(rpc, _outcome(answer))
        return answer

    return around


def _ended(extensions: Extensions, rpc: Rpc, serving: asyncio.Future[Command | None]) -> None:
    if serving.cancelled():
        outcome = Outcome(error=RpcError("CANCELLED", "the caller went away"))
    elif (error := serving.exception()) is not None:
        outcome = Outcome(error=error)
    else:
        outcome = _outcome(serving.result())
    extensions.after(rpc, outcome)


def _outcome(answer: Command | None) -> Outcome:
    return Outcome([answer] if answer is not None else [])
