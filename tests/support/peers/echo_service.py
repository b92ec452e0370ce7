"""A service with every kind of RPC, served by either transport in a thread of its own."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.wrappers_pb2 import BytesValue

from broker_gateway.runtime.reply import Reply
from broker_gateway.runtime.tick import Stage, Tick
from broker_gateway.transport.context import CallContext, RpcError
from broker_gateway.transport.grpcio.server import GrpcioServer
from broker_gateway.transport.http2.server import Http2Server
from tests.support.waiting import LIMIT_S

SERVICE = "/lakebroker.test.Echo/"


def _descriptor() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="lakebroker/test/echo.proto",
        package="lakebroker.test",
        dependency=["google/protobuf/wrappers.proto"],
        syntax="proto3",
    )
    service = file.service.add(name="Echo")
    kinds = {"Unary": (0, 0), "Later": (0, 0), "Coroutine": (0, 0), "Down": (0, 1), "AllAtOnce": (0, 1)}
    for name, (up, down) in {**kinds, "Up": (1, 0), "Both": (1, 1)}.items():
        service.method.add(
            name=name,
            input_type=".google.protobuf.BytesValue",
            output_type=".google.protobuf.BytesValue",
            client_streaming=bool(up),
            server_streaming=bool(down),
        )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindServiceByName("lakebroker.test.Echo")


class Echo:
    """Answers with what was sent; the first byte of a request may ask for something else.

    `F` fails with a status, `X` with a bug, `W` waits for ever, `M` answers the metadata `x-ask` and the peer.
    """

    def __init__(self, tick: Tick) -> None:
        self.tick = tick
        self.cancelled = 0
        self.waiting = 0
        """Calls that began to wait for ever."""
        self.sent = 0

    def _check(self, value: bytes) -> None:
        if value[:1] == b"F":
            raise RpcError("FAILED_PRECONDITION", "not now: ä % \n 漢")
        if value[:1] == b"X":
            raise ValueError("a bug")

    def Unary(self, request: BytesValue, context: CallContext) -> BytesValue:
        self._check(request.value)
        if request.value[:1] == b"M":
            return BytesValue(value=f"{context.metadata.get('x-ask')} {context.peer}".encode())
        return request

    def Later(self, request: BytesValue, context: CallContext) -> Reply[Any]:
        self._check(request.value)
        reply: Reply[Any] = Reply(self._left)
        if request.value[:1] == b"W":
            self.waiting += 1
        else:
            self.tick.add(Stage.JOURNAL, lambda: reply.set(request.SerializeToString()))
        return reply

    async def Coroutine(self, request: BytesValue, context: CallContext) -> BytesValue:
        await self._wait(request.value)
        return request

    async def Down(self, request: BytesValue, context: CallContext) -> AsyncIterator[Any]:
        """`COUNT SIZE` asks for messages; `W` waits after the first."""
        await asyncio.sleep(0)
        self._check(request.value)
        if request.value[:1] == b"W":
            try:
                yield BytesValue(value=b"first")
            except (
                asyncio.CancelledError,
                GeneratorExit,
            ):  # the client was gone before this one was on its way
                self._left()
                raise
            await self._wait(request.value)
        count, size = map(int, request.value.split())
        for number in range(count):
            yield BytesValue(value=bytes([number % 256]) * size)
            self.sent += 1
        if count > 2:
            yield [BytesValue(value=b"last"), BytesValue(value=b"of all").SerializeToString()]

    def AllAtOnce(self, request: BytesValue, context: CallContext) -> Reply[Any]:
        reply: Reply[Any] = Reply(self._left)
        if request.value[:1] == b"W":
            self.waiting += 1
        else:
            reply.set([request, request.SerializeToString(), request])
        return reply

    async def Up(self, requests: AsyncIterator[BytesValue], context: CallContext) -> BytesValue:
        total = 0
        async for request in requests:
            self._check(request.value)
            total += len(request.value)
        return BytesValue(value=str(total).encode())

    async def Both(
        self, requests: AsyncIterator[BytesValue], context: CallContext
    ) -> AsyncIterator[BytesValue]:
        async for request in requests:
            self._check(request.value)
            await self._wait(request.value)
            yield request

    async def _wait(self, value: bytes) -> None:
        self._check(value)
        try:
            await asyncio.sleep(0)
            if value[:1] == b"W":
                self.waiting += 1
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self._left()
            raise

    def _left(self) -> None:
        self.cancelled += 1


class Served:
    """The service on a port of the loopback interface."""

    def __init__(self, transport: str, tls: ssl.SSLContext | None = None) -> None:
        self.transport = transport
        self._tls = tls
        self._loop = uvloop.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._thread.start()
        assert self._ready.wait(LIMIT_S)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    def stop(self, grace_s: float = 0.0) -> None:
        if self._thread.is_alive():
            self.begin_stop(grace_s)
            self._thread.join(LIMIT_S)
            assert not self._thread.is_alive()
            self._loop.close()

    def begin_stop(self, grace_s: float) -> None:
        """Returns at once."""
        self._grace_s = grace_s
        self._loop.call_soon_threadsafe(self._stopping.set)

    async def _run(self) -> None:
        self._stopping = asyncio.Event()
        tick = Tick()
        self.echo = Echo(tick)
        self.server: GrpcioServer | Http2Server
        if self.transport == "grpcio":
            self.server = GrpcioServer("127.0.0.1", 0, "127.0.0.1")
        else:
            self.server = Http2Server("127.0.0.1", 0, "127.0.0.1", tick, self._tls)
        self.server.bind(DESCRIPTOR, self.echo)
        await self.server.start()
        self._ready.set()
        await self._stopping.wait()
        await self.server.stop(self._grace_s)


DESCRIPTOR = _descriptor()
