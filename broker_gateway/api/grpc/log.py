"""`lakebroker.log.v1.LogService`: the commit log for readers elsewhere. Readable bytes only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb
from store.errors import OtherLogError, StoreError
from store.log_source import StoreLog
from store.message_store import MessageStore

CHUNK_BYTES = 1 << 20
MIN_CHUNK_BYTES = 4 << 10
MAX_CHUNK_BYTES = 2 << 20
MAX_WAIT_MS = 10_000
MAX_RANGES = 10_000
_POLL_S = 0.02


class LogService:
    """Answers over the store; `delay_level_ms` are the durations of the broker's delay levels."""

    def __init__(self, store: MessageStore, delay_level_ms: tuple[int, ...]) -> None:
        self._store = store
        self._log = StoreLog(store, delay_level_ms)
        self._splitting = asyncio.Lock()

    async def DescribeLog(
        self, request: pb.DescribeLogRequest, context: CallContext
    ) -> pb.DescribeLogResponse:
        store = self._store
        if request.wait_ms > 0:
            loop = asyncio.get_running_loop()
            until = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
            while store.readable_offset <= request.after_offset and loop.time() < until:
                store.request_flush()
                await asyncio.sleep(_POLL_S)
        else:
            store.request_flush()
        state = self._log.describe()
        return pb.DescribeLogResponse(
            cluster=store.cluster,
            broker=state.broker,
            log_id=state.log_id,
            min_offset=state.start,
            readable_offset=state.end,
            max_offset=store.max_offset,
            segment_size=state.segment_size,
            delay_level_ms=state.delay_levels,
        )

    async def ReadLog(
        self, request: pb.ReadLogRequest, context: CallContext
    ) -> AsyncIterator[pb.ReadLogResponse]:
        if request.chunk_bytes < 0:
            raise RpcError("INVALID_ARGUMENT", f"chunk_bytes {request.chunk_bytes} is negative")
        size = min(max(request.chunk_bytes or CHUNK_BYTES, MIN_CHUNK_BYTES), MAX_CHUNK_BYTES)
        with _translated():
            for offset, data in self._log.read(
                request.log_id, request.start_offset, request.end_offset, size
            ):
                yield pb.ReadLogResponse(offset=offset, data=bytes(data), next_offset=offset + len(data))

    async def SplitLog(self, request: pb.SplitLogRequest, context: CallContext) -> pb.SplitLogResponse:
        size, limit = request.max_bytes, request.limit_bytes
        if size <= 0 or limit < 0:
            raise RpcError("INVALID_ARGUMENT", f"max_bytes {size} and limit_bytes {limit} must be positive")
        most = size * MAX_RANGES
        async with self._splitting:
            await asyncio.sleep(0)  # one a tick: other calls are served between them
            with _translated():
                cuts = self._log.split(
                    request.log_id,
                    request.start_offset,
                    request.end_offset,
                    size,
                    min(limit, most) if limit else most,
                )
        return pb.SplitLogResponse(boundaries=cuts)

    async def ReportProgress(
        self, request: pb.ReportProgressRequest, context: CallContext
    ) -> pb.ReportProgressResponse:
        with _translated():
            self._log.report(request.log_id, request.offset)
        return pb.ReportProgressResponse()


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """What cannot be read, as a gRPC status: NOT_FOUND for another log, OUT_OF_RANGE."""
    try:
        yield
    except OtherLogError as error:
        raise RpcError("NOT_FOUND", str(error)) from error
    except StoreError as error:
        raise RpcError("OUT_OF_RANGE", str(error)) from error
