"""The log of a broker elsewhere, by its log service: a `LogSource` over gRPC.

Calls raise SourceError, UnreachableError where the broker may answer later.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from store.log.erased import Offsets
from store.log_source import LogState
from structured_streaming.errors import SourceError, UnreachableError
from structured_streaming.source.access import Access, unconnected

CHUNK_BYTES = 2 << 20
CALL_S = 10.0
"""A call's deadline."""
SILENCE_S = 8.0
"""A broker that sends nothing for so long in the middle of a range is away."""
_LIST_S = 60.0
"""For all erased records of a log, which may change meanwhile."""
_MOST_ERASED = 100_000_000
"""As many as lakeMaxErasedRecords lets a broker have."""
_POLL_S = 0.05
_REPORT_S = 2.0


class BrokerLog:
    """A gateway's log service at `host:port`."""

    def __init__(self, address: str, access: Access) -> None:
        self._channel = access.channel(address)
        import grpc

        self.address = address
        self._errors = grpc.RpcError
        self._metadata = access.metadata
        self._own_ca = access.ca is not None
        self._reports: list[Any] = []
        self._complained = False

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        request = pb.DescribeLogRequest(wait_ms=wait_ms, after_offset=after)
        answer = self._call("DescribeLog", request, pb.DescribeLogResponse, wait_ms)
        levels = tuple(answer.delay_level_ms) or None
        start, end, size = answer.min_offset, answer.readable_offset, answer.segment_size
        written, version = answer.max_offset, answer.erased_version
        return LogState(answer.broker, answer.log_id, start, end, levels, size or None, written, version)

    def split(self, log_id: str, start: int, end: int, max_bytes: int, limit_bytes: int = 0) -> list[int]:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        cuts = [start]
        while cuts[-1] < end:
            request = pb.SplitLogRequest(
                log_id=log_id,
                start_offset=cuts[-1],
                end_offset=end,
                max_bytes=max_bytes,
                limit_bytes=limit_bytes,
            )
            found = list(self._call("SplitLog", request, pb.SplitLogResponse).boundaries)
            if len(found) < 2 or found[0] != cuts[-1] or any(b <= a for a, b in itertools.pairwise(found)):
                raise SourceError(f"broker {self.address} cut the log at {found[:5]}, asked from {cuts[-1]}")
            cuts += found[1:]
            if limit_bytes:
                break
        return cuts

    def read(
        self, log_id: str, start: int, end: int, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, bytes | memoryview]]:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        open_stream = self._channel.unary_stream(
            "/lakebroker.log.v1.LogService/ReadLog",
            request_serializer=pb.ReadLogRequest.SerializeToString,
            response_deserializer=pb.ReadLogResponse.FromString,
        )
        request = pb.ReadLogRequest(
            log_id=log_id, start_offset=start, end_offset=end, chunk_bytes=chunk_bytes
        )
        expected = start
        try:
            for answer in _while_it_sends(open_stream(request, metadata=self._metadata)):
                if answer.offset != expected or answer.next_offset <= expected:
                    raise SourceError(
                        f"broker {self.address} sent offset {answer.offset}, expected {expected}"
                    )
                expected = answer.next_offset
                yield answer.offset, answer.data
        except self._errors as error:
            raise self._failed("ReadLog", error) from error
        if expected != end:
            raise SourceError(f"broker {self.address} ended the log at {expected}, asked for up to {end}")

    def erased(self, log_id: str) -> Offsets:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        parts: list[Offsets] = []
        start: int | None = 0
        version: int | None = None
        until = time.monotonic() + _LIST_S
        while start is not None:
            if time.monotonic() > until or sum(map(len, parts)) > _MOST_ERASED:
                raise UnreachableError(
                    f"broker {self.address} lists erased records without end, {sum(map(len, parts)):,} in {_LIST_S:g} s"
                )
            request = pb.ListErasedRequest(log_id=log_id, start_offset=start)
            answer = self._call("ListErased", request, pb.ListErasedResponse)
            if version not in (None, answer.erased_version):  # changed between two pages
                parts, start, version = [], 0, None
                continue
            parts.append(np.array(answer.physical_offset, np.int64))
            version = answer.erased_version
            if answer.next_offset and answer.next_offset <= start:
                raise SourceError(f"broker {self.address} lists erased records in a circle, at {start}")
            start = answer.next_offset or None
        found = np.concatenate(parts)
        if (np.diff(found) <= 0).any():
            raise SourceError(f"broker {self.address} lists erased records that do not ascend")
        return found

    def report(self, log_id: str, offset: int) -> None:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        request = pb.ReportProgressRequest(log_id=log_id, reader="reput", offset=offset)
        self._reports = [each for each in self._reports if not each.done()]
        report = self._method("ReportProgress", request, pb.ReportProgressResponse).future(
            request, metadata=self._metadata, timeout=CALL_S
        )
        report.add_done_callback(self._reported)
        self._reports.append(report)

    def close(self) -> None:
        until = time.monotonic() + _REPORT_S
        while any(not each.done() for each in self._reports) and time.monotonic() < until:
            time.sleep(_POLL_S)
        self._channel.close()

    def _reported(self, report: Any) -> None:
        """Says once that progress could not be reported: the gateway looks into the lake itself."""
        try:
            report.result()
        except self._errors as error:
            if not self._complained:
                self._complained = True
                sys.stderr.write(
                    f"lakebroker: progress not reported: {self._failed('ReportProgress', error)}\n"
                )
        except Exception:  # cancelled: the channel was closed
            return
        else:
            self._complained = False

    def _method(self, method: str, request: Any, response: Any) -> Any:
        return self._channel.unary_unary(
            f"/lakebroker.log.v1.LogService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )

    def _call(self, method: str, request: Any, response: Any, wait_ms: int = 0) -> Any:
        try:
            return self._method(method, request, response)(
                request, metadata=self._metadata, timeout=CALL_S + wait_ms / 1000
            )
        except self._errors as error:
            raise self._failed(method, error) from error

    def _failed(self, method: str, error: Any) -> SourceError:
        code = error.code().name
        if code == "CANCELLED":  # by `_while_it_sends`
            return UnreachableError(f"broker {self.address} sent nothing for {SILENCE_S:g} s")
        if code == "UNAVAILABLE":
            told = unconnected(self.address, error.details() or "", own_ca=self._own_ca)
            if told is not None:
                return told
        kind = UnreachableError if code in _LATER else SourceError
        remedy = "; give the gRPC port of a lakebroker gateway" if code == "UNIMPLEMENTED" else ""
        return kind(f"broker {self.address} answered {method} with {code}: {error.details()}{remedy}")


_LATER = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNKNOWN", "INTERNAL")


def _while_it_sends(stream: Any) -> Iterator[Any]:
    """The answers of a stream; cancels it when the next one does not come."""
    waiting_since: float | None = None
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(SILENCE_S / 8):
            since = waiting_since
            if since is not None and time.monotonic() - since > SILENCE_S:
                stream.cancel()
                return

    threading.Thread(target=watch, daemon=True, name="read-log").start()
    try:
        while True:
            waiting_since = time.monotonic()
            answer = next(stream, None)
            waiting_since = None
            if answer is None:
                return
            yield answer
    finally:
        ended.set()
        stream.cancel()
