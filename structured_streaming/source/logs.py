"""Ways into a commit log: a store's folder, or a gateway's log service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from store.errors import StoreError
from structured_streaming.errors import SourceError

CHUNK_BYTES = 2 << 20
_CALL_S = 15.0
_READ_S = 300.0


@dataclass(frozen=True, slots=True)
class LogState:
    """What can be read of a log; offsets in bytes. `end` is the flushed end.

    `delay_levels` are the broker's durations, ms, level 1 first; None where they are not known.
    """

    broker: str
    log_id: str
    start: int
    end: int
    delay_levels: tuple[int, ...] | None = None


class Log(Protocol):
    """One commit log. Every call raises SourceError."""

    address: str

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState: ...

    def split(self, log_id: str, start: int, end: int, max_bytes: int) -> list[int]: ...

    def read(self, log_id: str, start: int, end: int) -> Iterator[tuple[int, bytes | memoryview]]: ...

    def report(self, log_id: str, offset: int) -> None: ...

    def close(self) -> None: ...


class FolderLog:
    """A store's folder on this machine."""

    def __init__(self, folder: str) -> None:
        from store.log_reader import LogReader

        self.address = folder
        try:
            self._reader = LogReader(Path(folder))
        except (StoreError, OSError) as error:
            raise SourceError(f"store {folder}: {error}") from error

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        reader = self._reader
        return LogState(reader.broker, reader.log_id, reader.min_offset, reader.flushed_offset)

    def split(self, log_id: str, start: int, end: int, max_bytes: int) -> list[int]:
        self._same(log_id)
        try:
            return self._reader.split(start, end, max_bytes)
        except StoreError as error:
            raise SourceError(f"store {self.address}: {error}") from error

    def read(self, log_id: str, start: int, end: int) -> Iterator[tuple[int, bytes | memoryview]]:
        self._same(log_id)
        try:
            for offset, data, _ in self._reader.read_chunks(start, end, 16 << 20):
                yield offset, data
        except StoreError as error:
            raise SourceError(f"store {self.address}: {error}") from error

    def report(self, log_id: str, offset: int) -> None:
        """Nobody to tell: the gateway reads the lake itself."""

    def close(self) -> None:
        self._reader.close()

    def _same(self, log_id: str) -> None:
        if log_id != self._reader.log_id:
            raise SourceError(f"store {self.address} holds log {self._reader.log_id}, not {log_id}")


class BrokerLog:
    """A gateway's log service at `host:port`."""

    def __init__(self, address: str, token: str | None) -> None:
        import grpc

        self.address = address
        self._errors = grpc.RpcError
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        self._channel = grpc.insecure_channel(
            address, options=[("grpc.max_receive_message_length", 64 << 20)]
        )

    def describe(self, wait_ms: int = 0, after: int = -1) -> LogState:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        answer = self._call(
            "DescribeLog", pb.DescribeLogRequest(wait_ms=wait_ms, after_offset=after), pb.DescribeLogResponse
        )
        levels = tuple(answer.delay_level_ms) or None
        return LogState(answer.broker, answer.log_id, answer.min_offset, answer.flushed_offset, levels)

    def split(self, log_id: str, start: int, end: int, max_bytes: int) -> list[int]:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        request = pb.SplitLogRequest(log_id=log_id, start_offset=start, end_offset=end, max_bytes=max_bytes)
        return list(self._call("SplitLog", request, pb.SplitLogResponse).boundaries)

    def read(self, log_id: str, start: int, end: int) -> Iterator[tuple[int, bytes | memoryview]]:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        call = self._channel.unary_stream(
            "/lakebroker.log.v1.LogService/ReadLog",
            request_serializer=pb.ReadLogRequest.SerializeToString,
            response_deserializer=pb.ReadLogResponse.FromString,
        )
        request = pb.ReadLogRequest(
            log_id=log_id, start_offset=start, end_offset=end, chunk_bytes=CHUNK_BYTES
        )
        expected = start
        try:
            for answer in call(request, metadata=self._metadata, timeout=_READ_S):
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

    def report(self, log_id: str, offset: int) -> None:
        from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb

        request = pb.ReportProgressRequest(log_id=log_id, reader="reput", offset=offset)
        self._call("ReportProgress", request, pb.ReportProgressResponse)

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: str, request: Any, response: Any) -> Any:
        call = self._channel.unary_unary(
            f"/lakebroker.log.v1.LogService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        try:
            return call(request, metadata=self._metadata, timeout=_CALL_S)
        except self._errors as error:
            raise self._failed(method, error) from error

    def _failed(self, method: str, error: Any) -> SourceError:
        return SourceError(
            f"broker {self.address} answered {method} with {error.code().name}: {error.details()}"
        )


def open_log(target: str, token: str | None) -> Log:
    """The log at a target as options name it: `store:FOLDER` or `broker:HOST:PORT`; the caller closes it."""
    kind, _, address = target.partition(":")
    return FolderLog(address) if kind == "store" else BrokerLog(address, token)


def targets(options: dict[str, str]) -> list[str]:
    """Targets named by the options `store` and `brokers`, both lists divided by commas. Raises SourceError."""
    named = [f"store:{part.strip()}" for part in options.get("store", "").split(",") if part.strip()]
    named += [f"broker:{part.strip()}" for part in options.get("brokers", "").split(",") if part.strip()]
    if not named:
        raise SourceError("no log to read: set the option store (folders) or brokers (host:port,…)")
    return named


def token_of(options: dict[str, str]) -> str | None:
    """The token from the option `tokenfile`. Raises SourceError."""
    path = options.get("tokenfile")
    if not path:
        return None
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise SourceError(f"tokenFile {path} cannot be read: {error}") from error
