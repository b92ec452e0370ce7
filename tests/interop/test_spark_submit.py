"""`spark-submit` of the jobs to a standalone cluster, as docs/spark-clusters.md says: a broker, a master, workers and the driver on hosts
that share no file; the lake in an object store. A worker is killed while the reput runs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.logs import written
from tests.support.lakes.checks import assert_exact
from tests.support.machines.hosts import Host, Hosts
from tests.support.machines.object_store import BUCKET, object_store
from tests.support.spark.cluster import Cluster, Place

TOKEN = "0123456789abcdef-secret"
LAKE = f"s3://{BUCKET}/submitted"
RECORDS = 4000
PORT = 8081
ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "of-this-test-alone",
    "spark.network.crypto.enabled": "true",
}
DEFAULTS = "".join(f"{name} {value}\n" for name, value in ENCRYPTED.items())
"""Of the cluster. What is submitted has them on its command line: beside a folder of settings its JVM would not take its archive."""
LOOKS = 1200
"""The most of them while a job runs, half a second or more apart."""


def gateway(host: Host) -> Gateway:
    token = host.folder / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    written(host.folder / "store", host.name, RECORDS)
    addresses = dict.fromkeys(("grpcBindAddress", "bindAddress", "brokerIP1"), host.address)
    options = {"brokerName": host.name, "grpcServerPort": str(PORT), "lakeTokenFile": str(token)}
    return Gateway(host.folder, wrapper=host.wrapper, **addresses, **options)


@pytest.mark.timeout(900)
def test_submitted_jobs_build_and_maintain_a_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hosts(tmp_path) as hosts:
        broker, master, *workers, driver = (
            hosts.add(name) for name in ("broker-a", "master", "worker-0", "worker-1", "driver")
        )
        with object_store(tmp_path / "hosts" / "objects", hosts.address) as objects:
            for name, value in objects.environment.items():
                monkeypatch.setenv(name, value)
            places = [Place(each.address, each.wrapper, each.folder) for each in (master, *workers)]
            with gateway(broker) as served, Cluster(places, defaults=DEFAULTS) as cluster:
                authorities, scratch = driver.folder / "ca.pem", driver.folder / "tmp"
                log = driver.folder / "submitted.log"
                authorities.write_bytes((served.store / "config" / "trial-certificate.pem").read_bytes())
                scratch.mkdir()
                for worker in workers:
                    assert not any(worker.sees(each) for each in (served.store, authorities, scratch))
                read = (
                    *("reput", "--brokers", f"{broker.address}:{PORT}", "--tls-ca", str(authorities)),
                    *("--lake", LAKE, "--once", "--json", "--batch-bytes", str(1 << 20)),
                )
                environments: list[bytes] = []

                def look() -> None:
                    environments.extend(found for worker in workers for found in environments_of(worker))
                    lags = re.findall(r'"lag_bytes": ?(\d+)', log.read_text(errors="replace"))
                    if len(cluster.ran()) == len(workers) and lags and int(lags[-1]):
                        cluster.workers[0].kill()  # its executor ends with it

                said = submitted(driver, cluster.master, scratch, log, look, *read)
                assert cluster.workers[0].poll() == -signal.SIGKILL, said[-3000:]
                assert cluster.workers[1].poll() is None
                assert "not encrypted" not in said
                assert environments
                assert not any(TOKEN.encode() in each for each in environments)
                assert TOKEN not in said
                submitted(driver, cluster.master, scratch, log, lambda: None, "maintain", "--lake", LAKE)
            assert assert_exact(LAKE, served.store)["messages"] == RECORDS


def submitted(
    driver: Host, master: str, scratch: Path, log: Path, look: Callable[[], None], *command: str
) -> str:
    """What it printed, which is in `log` as it comes. While it runs, `look` is called."""
    home = Path(pyspark.__file__).parent
    settings = {
        **ENCRYPTED,
        "spark.driver.host": driver.address,
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(scratch),
        "spark.pyspark.python": sys.executable,
        "spark.ui.enabled": "false",
    }
    submit = (
        *(str(home / "bin" / "spark-submit"), "--master", master),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        str(ROOT / "deploy" / "spark" / "lakebroker_job.py"),
    )
    own = {
        "LAKEBROKER_TOKEN": TOKEN,
        "TMPDIR": str(scratch),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": driver.address,
        "PYTHONPATH": str(ROOT),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*driver.wrapper, *submit, *command], cwd=ROOT, env=os.environ | own, stdout=out, stderr=out
        )
    try:
        for _ in range(LOOKS):
            look()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
                break
    finally:
        process.kill()
        process.wait()
    said = log.read_text(errors="replace")
    assert process.returncode == 0, said[-3000:]
    return said


def environments_of(host: Host) -> list[bytes]:
    """Of its executors and their Python."""
    found = []
    for process in host.processes():
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes()
            if b"CoarseGrainedExecutorBackend" in command or b"pyspark" in command.rpartition(b"-m")[2]:
                found.append(Path(f"/proc/{process}/environ").read_bytes())
        except OSError:
            continue  # it ended meanwhile
    return found
