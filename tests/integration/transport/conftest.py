"""The test service on either transport, and a channel of grpcio's client to it."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from tests.support.peers.echo_service import Served


@pytest.fixture(params=["http2", "grpcio"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    server = Served(request.param)
    yield server
    server.stop()


@pytest.fixture
def http2() -> Iterator[Served]:
    server = Served("http2")
    yield server
    server.stop()


@pytest.fixture
def channel(served: Served) -> Iterator[grpc.Channel]:
    limit = 70 << 20
    options = [("grpc.max_receive_message_length", limit), ("grpc.max_send_message_length", limit)]
    with grpc.insecure_channel(served.address, options=options) as channel:
        yield channel
