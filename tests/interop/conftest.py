"""What tests beside RocketMQ share, and how their files are divided among workers.

All files of tests that share the real RocketMQ are one group, for one worker; every other file is a group of its own. The
longest groups come first, so that no worker is left alone with one of them at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from lakebroker_testing.real_rocketmq import RocketMQ
from tests.support.rocketmq.mqadmin import MqAdmin
from tests.support.rocketmq.put_off_calls import OPTIONS

_LONGEST = ("rocketmq", "test_store_exchange", "test_scale_out", "test_catalogs", "test_object_store")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sharing = {item.path for item in items if "rocketmq" in getattr(item, "fixturenames", ())}
    rank = {name: at for at, name in enumerate(_LONGEST)}

    def group(item: pytest.Item) -> str:
        return "rocketmq" if item.path in sharing else item.path.stem

    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))
    items.sort(key=lambda item: rank.get(group(item), len(rank)))


@pytest.fixture(scope="session")
def rocketmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """A real name server, and a broker with its proxy, where each test has topics and groups of its own."""
    with RocketMQ(tmp_path_factory.mktemp("rocketmq"), {}, heap="1g", **OPTIONS) as running:
        yield running


@pytest.fixture(scope="session")
def mqadmin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqAdmin]:
    with contextlib.closing(MqAdmin(tmp_path_factory.mktemp("mqadmin"))) as running:
        yield running
