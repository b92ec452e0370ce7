"""`lakebroker.log.v1.LogService`: the commit log for readers elsewhere. Flushed bytes only (invariant 4)."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator

from broker_gateway.runtime.clock import now_ms
from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb
from store.errors import StoreError
from store.index.queue_index import NO_LIMIT
from store.message_store import MessageStore

CHUNK_BYTES = 1 << 20
MAX_CHUNK_BYTES = 2 << 20
MAX_WAIT_MS = 10_000
MAX_RANGES = 10_000
READERS_KEPT = 1000
_LOOK_S = 0.02


class LogService:
    """Answers over the store; `progress` holds what readers reported: (offset, ms since the epoch).

    `delay_level_ms` are the durations of the broker's delay levels.
    """

    def __init__(self, store: MessageStore, delay_level_ms: tuple[int, ...]) -> None:
        self._store = store
        self._delay_level_ms = delay_level_ms
        self.progress: OrderedDict[str, tuple[int, int]] = OrderedDict()

    async def DescribeLog(
        self, request: pb.DescribeLogRequest, context: CallContext
    ) -> pb.DescribeLogResponse:
        store = self._store
        if request.wait_ms > 0:
            loop = asyncio.get_running_loop()
            until = loop.time() + min(request.wait_ms, MAX_WAIT_MS) / 1000
            while store.readable_offset <= request.after_offset and loop.time() < until:
                store.request_flush()
                await asyncio.sleep(_LOOK_S)
        else:
            store.request_flush()
        return pb.DescribeLogResponse(
            cluster=store.cluster,
            broker=store.broker,
            log_id=store.log_id,
            min_offset=store.min_offset,
            readable_offset=store.readable_offset,
            max_offset=store.max_offset,
            segment_size=store.segment_size,
            delay_level_ms=self._delay_level_ms,
        )

    async def ReadLog(
        self, request: pb.ReadLogRequest, context: CallContext
    ) -> AsyncIterator[pb.ReadLogResponse]:
        self._check(request.log_id, request.start_offset, request.end_offset)
        size = min(request.chunk_bytes or CHUNK_BYTES, MAX_CHUNK_BYTES)
        if size < 0:
            raise RpcError("INVALID_ARGUMENT", f"chunk_bytes {size} is negative")
        try:
            for offset, data, following in self._store.read_chunks(
                request.start_offset, request.end_offset, size
            ):
                yield pb.ReadLogResponse(offset=offset, data=bytes(data), next_offset=following)
        except StoreError as error:
            raise RpcError("OUT_OF_RANGE", str(error)) from error

    async def SplitLog(self, request: pb.SplitLogRequest, context: CallContext) -> pb.SplitLogResponse:
        self._check(request.log_id, request.start_offset, request.end_offset)
        size, limit = request.max_bytes, request.limit_bytes or NO_LIMIT
        if size <= 0 or limit < 0:
            raise RpcError("INVALID_ARGUMENT", f"max_bytes {size} and limit_bytes {limit} must be positive")
        try:
            cuts = self._store.split(
                request.start_offset, request.end_offset, size, min(limit, size * MAX_RANGES)
            )
        except StoreError as error:
            raise RpcError("OUT_OF_RANGE", str(error)) from error
        return pb.SplitLogResponse(boundaries=cuts)

    async def ReportProgress(
        self, request: pb.ReportProgressRequest, context: CallContext
    ) -> pb.ReportProgressResponse:
        self._check_log(request.log_id)
        self.progress[request.reader[:200]] = (request.offset, now_ms())
        self.progress.move_to_end(request.reader[:200])
        if len(self.progress) > READERS_KEPT:
            self.progress.popitem(last=False)
        return pb.ReportProgressResponse()

    def _check_log(self, log_id: str) -> None:
        if log_id != self._store.log_id:
            raise RpcError(
                "NOT_FOUND",
                f"log {log_id[:64]!r} is not here; broker {self._store.broker} has {self._store.log_id}",
            )

    def _check(self, log_id: str, start: int, end: int) -> None:
        self._check_log(log_id)
        store = self._store
        if not store.min_offset <= start <= end <= store.readable_offset:
            raise RpcError(
                "OUT_OF_RANGE",
                f"range {start} to {end} is outside of the readable log, {store.min_offset} to {store.readable_offset}",
            )
        for offset in (start, end):
            if offset != store.readable_offset and not store.is_boundary(offset):
                raise RpcError(
                    "OUT_OF_RANGE", f"physical offset {offset} is within a record; give where one begins"
                )
