"""`lakebroker.log.v1.LogService`: the commit log for readers elsewhere. Readable bytes only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TypeVar

import numpy as np

from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb
from store.errors import OtherLogError, StoreDamagedError, StoreError
from store.log.erased import version_of
from store.log_source import ServedLog

CHUNK_BYTES = 1 << 20
MIN_CHUNK_BYTES = 4 << 10
MAX_CHUNK_BYTES = 2 << 20
MAX_WAIT_MS = 10_000
MAX_RANGES = 10_000
MAX_ERASED = 100_000
_POLL_S = 0.02
T = TypeVar("T")


class LogService:
    """Answers over a log. With `on_threads` its calls block, and may come from any thread. `on_read` gets the number of bytes
    of each chunk that a reader is sent."""

    def __init__(
        self, log: ServedLog, *, on_threads: bool = False, on_read: Callable[[int], None] = lambda size: None
    ) -> None:
        self._log = log
        self._on_threads = on_threads
        self._on_read = on_read
        self._splitting = asyncio.Lock()

    async def DescribeLog(
        self, request: pb.DescribeLogRequest, context: CallContext
    ) -> pb.DescribeLogResponse:
        log, loop = self._log, asyncio.get_running_loop()
        until = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
        log.request_flush()
        with _translated():
            state = await self._done(log.describe)
            while state.end <= request.after_offset and loop.time() < until:
                await asyncio.sleep(_POLL_S)
                log.request_flush()
                state = await self._done(log.describe)
        return pb.DescribeLogResponse(
            cluster=log.cluster,
            broker=state.broker,
            log_id=state.log_id,
            min_offset=state.start,
            readable_offset=state.end,
            max_offset=log.max_offset,
            segment_size=state.segment_size or 0,
            delay_level_ms=state.delay_levels or (),
            erased_version=state.erased_version,
        )

    async def ListErased(self, request: pb.ListErasedRequest, context: CallContext) -> pb.ListErasedResponse:
        with _translated():
            every = await self._done(lambda: self._log.erased(request.log_id))
        begin = int(np.searchsorted(every, request.start_offset))
        some = every[begin : begin + MAX_ERASED]
        following = int(every[begin + MAX_ERASED]) if begin + MAX_ERASED < len(every) else 0
        return pb.ListErasedResponse(
            erased_version=version_of(every), physical_offset=some.tolist(), next_offset=following
        )

    async def ReadLog(
        self, request: pb.ReadLogRequest, context: CallContext
    ) -> AsyncIterator[pb.ReadLogResponse]:
        if request.chunk_bytes < 0:
            raise RpcError("INVALID_ARGUMENT", f"chunk_bytes {request.chunk_bytes} is negative")
        size = min(max(request.chunk_bytes or CHUNK_BYTES, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        with _translated():
            chunks = self._log.read(request.log_id, request.start_offset, request.end_offset, size)
            while (chunk := await self._done(lambda: next(chunks, None))) is not None:
                offset, data = chunk
                self._on_read(len(data))
                yield pb.ReadLogResponse(offset=offset, data=bytes(data), next_offset=offset + len(data))

    async def SplitLog(self, request: pb.SplitLogRequest, context: CallContext) -> pb.SplitLogResponse:
        size, limit = request.max_bytes, request.limit_bytes
        if size <= 0 or limit < 0:
            raise RpcError("INVALID_ARGUMENT", f"max_bytes {size} and limit_bytes {limit} must be positive")
        most = size * MAX_RANGES
        log_id, start, end = request.log_id, request.start_offset, request.end_offset
        room = min(limit, most) if limit else most
        async with self._splitting:
            await asyncio.sleep(0)  # one a tick: other calls are served between them
            with _translated():
                cuts = await self._done(lambda: self._log.split(log_id, start, end, size, room))
        return pb.SplitLogResponse(boundaries=cuts)

    async def ReportProgress(
        self, request: pb.ReportProgressRequest, context: CallContext
    ) -> pb.ReportProgressResponse:
        with _translated():
            self._log.report(request.log_id, request.offset)
        return pb.ReportProgressResponse()

    async def _done(self, call: Callable[[], T]) -> T:
        return await asyncio.to_thread(call) if self._on_threads else call()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """What cannot be read, as a gRPC status: NOT_FOUND for another log, FAILED_PRECONDITION for a damaged one, else
    OUT_OF_RANGE."""
    try:
        yield
    except OtherLogError as error:
        raise RpcError("NOT_FOUND", str(error)) from error
    except StoreDamagedError as error:
        raise RpcError("FAILED_PRECONDITION", str(error)) from error
    except OSError as error:
        raise RpcError("FAILED_PRECONDITION", f"the log cannot be read: {error}") from error
    except StoreError as error:
        raise RpcError("OUT_OF_RANGE", str(error)) from error
