"""What tests beside RocketMQ share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.put_off_calls import OPTIONS

LONGEST = (
    "test_mqadmin.py",
    "test_extras.py",
    "test_dashboard.py",
    "test_spark_versions.py",
    "test_registration.py",
    "test_iceberg.py",
    "test_spark_submit.py",
    "test_console.py",
    "test_sidecar.py",
    "test_lite_administration.py",
    "test_sidecar_hosts.py",
    "test_nameserver.py",
    "test_official_clients.py",
)
"""Files that take longer than half a minute, behind those that `tests/suite/scheduling.py` has at the beginning: the short ones are left
for the end, when each worker waits for the last."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(
        key=lambda item: (
            rank.get(item.path.name, len(rank)) if item.path.parent.name == "interop" else len(rank)
        )
    )


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A real name server, and a broker with its proxy, where each test has topics and groups of its own."""
    with RocketMQ(tmp_path_factory.mktemp("rocketmq"), {}, heap="1g", **OPTIONS) as running:
        yield running


@pytest.fixture(scope="session")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with contextlib.closing(MqAdmin(tmp_path_factory.mktemp("mqadmin"))) as running:
        yield running
