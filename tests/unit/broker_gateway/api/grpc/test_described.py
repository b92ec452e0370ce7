"""DescribeBroker tells of the code that runs, and of the disk that fills."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from store.log.recovery import COMMIT_LOG_FOLDER


def test_the_version_stays_that_of_the_code_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def versions(broker: InProcessBroker) -> tuple[Any, Any]:
        described = broker.call("DescribeBroker", pb.DescribeBrokerRequest())
        return described.version, broker.call(
            "GetProxyRuntimeStats", rpc.GetProxyRuntimeStatsRequest()
        ).version

    with InProcessBroker() as broker:
        before = versions(broker)
        installed = tmp_path / "lakebroker-99.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lakebroker\nVersion: 99.0\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        assert versions(broker) == before


def test_the_disk_is_that_of_the_log(tmp_path: Path) -> None:
    here = shutil.disk_usage(tmp_path).total
    other = next(each for each in ("/dev/shm", "/var/tmp", "/proc") if shutil.disk_usage(each).total != here)
    with tempfile.TemporaryDirectory(dir=other) as elsewhere:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / COMMIT_LOG_FOLDER).symlink_to(elsewhere)
        expected = shutil.disk_usage(elsewhere).total
        with InProcessBroker(tmp_path) as broker:
            assert broker.call("DescribeBroker", pb.DescribeBrokerRequest()).disk_total == expected
