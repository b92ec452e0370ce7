"""What tests beside RocketMQ share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.put_off_calls import OPTIONS


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A real name server, and a broker with its proxy, where each test has topics and groups of its own."""
    with RocketMQ(tmp_path_factory.mktemp("rocketmq"), {}, heap="1g", **OPTIONS) as running:
        yield running


@pytest.fixture(scope="session")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with contextlib.closing(MqAdmin(tmp_path_factory.mktemp("mqadmin"))) as running:
        yield running
