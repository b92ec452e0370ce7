"""What a broker may say of its log, and what ends an asking that has no end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest

from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb
from structured_streaming.errors import UnreachableError
from structured_streaming.source import remote
from structured_streaming.source.access import Access
from structured_streaming.source.remote import BrokerLog

Answer = Callable[[pb.ListErasedRequest], pb.ListErasedResponse]


@contextmanager
def listing(answer: Answer) -> Iterator[BrokerLog]:
    """The log of a broker that answers so."""
    method = grpc.unary_unary_rpc_method_handler(
        lambda request, context: answer(request),
        request_deserializer=pb.ListErasedRequest.FromString,
        response_serializer=pb.ListErasedResponse.SerializeToString,
    )
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("lakebroker.log.v1.LogService", {"ListErased": method})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    log = BrokerLog(f"127.0.0.1:{port}", Access())
    try:
        yield log
    finally:
        log.close()
        server.stop(None).wait()


def test_a_list_of_pages_is_put_together() -> None:
    def page(request: pb.ListErasedRequest) -> pb.ListErasedResponse:
        at = request.start_offset
        return pb.ListErasedResponse(
            erased_version=7, physical_offset=[at, at + 1], next_offset=at + 2 if at < 8 else 0
        )

    with listing(page) as log:
        assert log.erased("log").tolist() == list(range(10))


@pytest.mark.parametrize("changes", [False, True])
def test_a_list_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, changes: bool) -> None:
    """One that goes on by a record each time, or is another one at each page."""
    monkeypatch.setattr(remote, "_LIST_S", 0.5)
    versions = itertools.count()

    def page(request: pb.ListErasedRequest) -> pb.ListErasedResponse:
        at = request.start_offset
        version = next(versions) if changes else 7
        return pb.ListErasedResponse(erased_version=version, physical_offset=[at], next_offset=at + 1)

    with listing(page) as log, pytest.raises(UnreachableError, match="lists erased records without end"):
        log.erased("log")
