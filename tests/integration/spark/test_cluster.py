"""The reput on a cluster: a master and workers of their own, which know neither the token nor the certificate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.logs import written
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact
from tests.support.spark.cluster import Cluster, on_loopback

COUNT = 2000


@LONG  # in short, a worker is killed under spark-submit: `tests/interop/test_spark_submit.py`; options and warning: `test_reput.py` of the unit tests
@pytest.mark.timeout(900)
def test_a_worker_that_is_killed_is_survived(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-secret\n")
    token.chmod(0o600)
    for name in ("broker-a", "broker-b"):
        written(tmp_path / name / "store", name, COUNT)
    options = {"lakeTokenFile": str(token)}
    with (
        Gateway(tmp_path / "broker-a", brokerName="broker-a", **options) as one,
        Gateway(tmp_path / "broker-b", brokerName="broker-b", **options) as two,
        Cluster(on_loopback(tmp_path / "cluster")) as cluster,
    ):
        ca = tmp_path / "ca.pem"
        ca.write_bytes(
            b"".join((each.store / "config" / "trial-certificate.pem").read_bytes() for each in (one, two))
        )
        process = subprocess.Popen(
            command(
                "reput",
                *("--brokers", f"{one.address},{two.address}", "--tls-ca", str(ca)),
                *("--token-file", str(token), "--lake", str(tmp_path / "lake")),
                *("--master", cluster.master, "--driver-host", "127.0.0.1"),
                *("--once", "--json", "--batch-bytes", str(1 << 20)),
            ),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            assert first["lag_bytes"] > 0
            cluster.workers[0].kill()  # its executor ends with it
            _, errors = process.communicate(timeout=700)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert process.returncode == 0, errors[-3000:]
        assert cluster.ran() == ["worker-0", "worker-1"]
        assert "not encrypted; set spark.authenticate" in errors
        assert "Traceback" not in errors
    assert assert_exact(tmp_path / "lake", one.store, two.store)["messages"] == 2 * COUNT
