"""A gateway process for the tests of this folder, and a client of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    with Gateway(folder, **OPTIONS) as process:
        yield process
        assert process.process is not None
        assert process.process.poll() is None, "the gateway died during the tests"


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Logging may be configured in this process; later tests log as before."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    client = Client(gateway.address)
    yield client
    client.channel.close()


@pytest.fixture
def name() -> str:
    """A topic or group nobody used before."""
    return f"t-{uuid.uuid4().hex[:12]}"
