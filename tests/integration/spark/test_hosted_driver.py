"""Commands in the driver of a host, whose Spark session has no Delta and stays as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lakebroker_testing.gateway import ROOT
from lakebroker_testing.logs import written
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import assert_exact
from tests.support.lakes.empty import empty_lake


def test_a_driver_without_delta_goes_on_after_every_command(tmp_path: Path) -> None:
    """A reput and its like in a driver: `test_provided_session.py` in this process, on two versions of Spark
    `tests/interop/test_bundle_jobs.py`."""
    store, lake = written(tmp_path / "store", "broker-a", 200), empty_lake(str(tmp_path / "lake")).path
    read = ["reput", "--store", str(store), "--once", "--lake", str(lake)]
    reputs = [[*read, "--metrics-port", "0"], read] if EVIDENCE else [read]
    asked = {
        "settings": {"spark.master": "local[2]", "spark.sql.session.timeZone": "America/New_York"},
        "again": {"spark.driver.memory": "3g"},
        "at_run_time": {"spark.sql.ansi.enabled": "false"},
        "runs": [
            *reputs,
            ["maintain", "--lake", str(lake)],
            [*read, "--master", "local[1]"],
            ["init", "--lake", "spark_catalog.lake"],
        ],
        "threads": [len(reputs) - 1, len(reputs)],
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.spark.hosted_driver", json.dumps(asked)],
        cwd=ROOT,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["changed"] == {}
    assert found["alive"] == [3, 7]
    *good, master, delta = found["ended"]
    assert good == [None] * (len(reputs) + 1)
    assert "a Spark session is there already (master local[2]), and is used; leave out --master" in master
    assert "lacks Delta" in delta
    assert "--packages io.delta:delta-spark_4.2_2.13:4.4.0" in delta
    assert assert_exact(lake, store)["messages"] == 200
