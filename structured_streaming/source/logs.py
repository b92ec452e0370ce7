"""Commit logs as a reader sees them: a store directory by path, or a broker through its log service.

Both give only flushed, record-aligned bytes. Objects hold open files or connections and are not pickled:
executors open their own from the address, a directory or `host:port`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb
from store.errors import StoreError
from store.log_reader import LogReader
from structured_streaming.errors import BrokerUnavailableError, SourceError

_SERVICE = "/lakebroker.log.v1.LogService/"
_CHUNK_BYTES = 2 << 20
_CALL_S = 10.0
_READ_S = 300.0
_LOOK_S = 0.01
_LOCAL_RANGE_BYTES = 64 << 20
_UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


@dataclass(frozen=True, slots=True)
class Description:
    """Which log this is and which bytes of it can be read: [min_offset, flushed_offset)."""

    cluster: str
    broker: str
    log_id: str
    min_offset: int
    flushed_offset: int


class Log(Protocol):
    """One commit log. Every method raises SourceError, or BrokerUnavailableError when a retry may help."""

    address: str

    def describe(self, *, after_offset: int = -1, wait_ms: int = 0) -> Description:
        """Waits up to `wait_ms` for bytes behind `after_offset`."""

    def split(self, log_id: str, start: int, end: int, max_bytes: int) -> list[int]:
        """Boundaries of record-aligned ranges of about `max_bytes`: n + 1 for n ranges."""

    def read(self, log_id: str, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        """Runs of whole records as (physical offset, bytes); a run ends where bytes are left out."""

    def report(self, log_id: str, reader: str, offset: int) -> None:
        """Tells the broker what is committed."""

    def close(self) -> None: ...


class PathLog:
    """The store in a directory, read by path."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._reader: LogReader | None = None

    def describe(self, *, after_offset: int = -1, wait_ms: int = 0) -> Description:
        with self._errors("describe", after_offset):
            reader = self._open()
            until = time.monotonic() + wait_ms / 1000
            flushed = reader.flushed_offset
            while flushed <= after_offset and time.monotonic() < until:
                time.sleep(_LOOK_S)
                flushed = reader.flushed_offset
            return Description(reader.cluster, reader.broker, reader.log_id, reader.min_offset, flushed)

    def split(self, log_id: str, start: int, end: int, max_bytes: int) -> list[int]:
        with self._errors("split", start):
            return _without_repeats(self._same(log_id).split(start, end, max_bytes))

    def read(self, log_id: str, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        with self._errors("read", start):
            for offset, data, _ in self._same(log_id).read_chunks(start, end, _LOCAL_RANGE_BYTES):
                yield offset, data

    def report(self, log_id: str, reader: str, offset: int) -> None:
        """Nobody listens behind a directory."""

    def close(self) -> None:
        self._reader = None  # views of the mapping may still be in use: the collector unmaps it

    def _open(self) -> LogReader:
        if self._reader is None:
            self._reader = LogReader(Path(self.address))
        return self._reader

    def _same(self, log_id: str) -> LogReader:
        reader = self._open()
        if reader.log_id != log_id:
            raise SourceError(
                f"store {self.address} of broker {reader.broker} holds log {reader.log_id}, not {log_id}: "
                "the disk was replaced; start the reput again, it begins with the new log"
            )
        return reader

    @contextmanager
    def _errors(self, what: str, offset: int) -> Iterator[None]:
        try:
            yield
        except (StoreError, OSError) as error:
            raise SourceError(
                f"store {self.address}: cannot {what} at physical offset {offset}: {error}"
            ) from error


class RemoteLog:
    """The log of a broker at `host:port`."""

    def __init__(self, address: str, token: str | None) -> None:
        self.address = address
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_reconnect_backoff_ms", 1000)]
        self._channel = grpc.insecure_channel(address, options=options)

    def describe(self, *, after_offset: int = -1, wait_ms: int = 0) -> Description:
        request = pb.DescribeLogRequest(wait_ms=wait_ms, after_offset=after_offset)
        answer = self._unary("DescribeLog", request, pb.DescribeLogResponse, after_offset, wait_ms / 1000)
        return Description(
            answer.cluster, answer.broker, answer.log_id, answer.min_offset, answer.flushed_offset
        )

    def split(self, log_id: str, start: int, end: int, max_bytes: int) -> list[int]:
        request = pb.SplitLogRequest(log_id=log_id, start_offset=start, end_offset=end, max_bytes=max_bytes)
        return _without_repeats(self._unary("SplitLog", request, pb.SplitLogResponse, start).boundaries)

    def read(self, log_id: str, start: int, end: int) -> Iterator[tuple[int, memoryview]]:
        request = pb.ReadLogRequest(
            log_id=log_id, start_offset=start, end_offset=end, chunk_bytes=_CHUNK_BYTES
        )
        call = self._channel.unary_stream(
            f"{_SERVICE}ReadLog",
            request_serializer=_serialize,
            response_deserializer=pb.ReadLogResponse.FromString,
        )
        reached = run_start = start
        run = bytearray()
        try:
            for chunk in call(request, timeout=_READ_S, metadata=self._metadata):
                if chunk.offset != run_start + len(run):
                    if run:
                        yield run_start, memoryview(run)
                    run_start, run = chunk.offset, bytearray()
                run += chunk.data
                reached = chunk.next_offset
        except grpc.RpcError as error:
            raise self._error("ReadLog", reached, error) from error
        if reached != end:
            raise BrokerUnavailableError(
                f"broker {self.address}: ReadLog ended at physical offset {reached}, asked up to {end}; try again"
            )
        if run:
            yield run_start, memoryview(run)

    def report(self, log_id: str, reader: str, offset: int) -> None:
        request = pb.ReportProgressRequest(log_id=log_id, reader=reader, offset=offset)
        self._unary("ReportProgress", request, pb.ReportProgressResponse, offset)

    def close(self) -> None:
        self._channel.close()

    def _unary(
        self, method: str, request: Any, response_type: Any, offset: int, longer_s: float = 0.0
    ) -> Any:
        call = self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=_serialize,
            response_deserializer=response_type.FromString,
        )
        try:
            return call(request, timeout=_CALL_S + longer_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error(method, offset, error) from error

    def _error(self, method: str, offset: int, error: grpc.RpcError) -> SourceError:
        code, details = error.code(), error.details()
        what = f"broker {self.address}: {method} at physical offset {offset}: {code.name} {details}"
        if code in _UNAVAILABLE:
            return BrokerUnavailableError(f"{what}; check that the gateway runs and the address is right")
        remedy = {
            grpc.StatusCode.NOT_FOUND: "the broker has another log now; start the reput again",
            grpc.StatusCode.OUT_OF_RANGE: "the bytes are gone or not flushed yet; start the reput again",
            grpc.StatusCode.PERMISSION_DENIED: "give --token-file, or read from the broker's own host",
            grpc.StatusCode.UNAUTHENTICATED: "check the token",
            grpc.StatusCode.UNIMPLEMENTED: "this is no lakebroker gateway; check the address",
        }.get(code, "see the gateway's log")
        return SourceError(f"{what}; {remedy}")


def open_log(address: str, token: str | None = None) -> Log:
    """The log at an address: with a path separator or existing as a directory a store, else `host:port`."""
    if is_store(address):
        return PathLog(address)
    return RemoteLog(address, token)


def is_store(address: str) -> bool:
    """Whether the address is a directory rather than `host:port`."""
    return "/" in address or Path(address).is_dir()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _without_repeats(boundaries: Any) -> list[int]:
    return sorted(set(boundaries))


def retried(call: Callable[[], Any], *, times: int = 3, pause_s: float = 0.3) -> Any:
    """The call's result; a broker that is away is asked again. Raises the last BrokerUnavailableError."""
    for attempt in range(times):
        try:
            return call()
        except BrokerUnavailableError:
            if attempt == times - 1:
                raise
            time.sleep(pause_s * 2**attempt)
    raise AssertionError("unreachable")
