"""What each of several brokers of one host is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_gateway.config import load_config
from broker_gateway.supervisor import child_options


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", None),
        ("/disk/log", "/disk/log/broker-a-1"),
        ("/one, /two/log/", "/one/broker-a-1,/two/log/broker-a-1"),
        ("/stores/commitlog", "/stores/broker-a-1/commitlog"),
        ("/stores/sub/../log,/disk", "/stores/broker-a-1/log,/disk/broker-a-1"),
        ("/stores", "/stores/broker-a-1"),
        ("/stores-too", "/stores-too/broker-a-1"),
    ],
)
def test_each_broker_has_folders_of_its_own_for_its_log(given: str, expected: str | None) -> None:
    config = load_config(None, {"storePathRootDir": "/stores", "storePathCommitLog": given})[0]
    assert child_options(config, 1, Path("/unused")).get("storePathCommitLog") == expected
