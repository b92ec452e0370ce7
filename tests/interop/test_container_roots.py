"""What the container files make, run from its own root as its user: no container engine is needed, and none was there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lakebroker_testing.logs import written
from tests.suite.evidence import LONG
from tests.support.machines.container_root import ContainerRoot
from tests.support.machines.containerfiles import CONTAINERS, the

pytestmark = [LONG, pytest.mark.timeout(7200)]

_STARTED = """
started() {
  n=0
  until health; do n=$((n + 1)); test $n -lt 600; kill -0 $pid; sleep 1; done
}
stopped() { kill -TERM $pid; wait $pid; echo "ended with $?"; if health; then exit 3; fi; }
"""
_BROKER = f"""{_STARTED}
$as $entry --set brokerIP1=10.0.0.5 --set lakeAutoCreateTopics=true & pid=$!
started
$as python -c 'from lakebroker_testing.client import Client; print(Client("127.0.0.1:8081").send("orders", b"kept").entries[0].status.message)'
stopped
$as $entry & pid=$!
started
$as python -c 'from lakebroker_testing.client import Client; print([each.body for each in Client("127.0.0.1:8081").receive("orders", "billing")[1]])'
stopped
if $as touch /etc/lakebroker/x /opt/lakebroker/x; then exit 4; fi
"""
_JOBS = f"""{_STARTED}
$as $entry --store store --lake lake & pid=$!
started
n=0
until $as lakebroker sql --lake lake --format csv 'SELECT count(*) AS counted FROM messages' | tr -d '\\r' | grep -x 300; do
  n=$((n + 1)); test $n -lt 300; kill -0 $pid; sleep 1
done
stopped
"""


def test_a_broker_keeps_what_it_took_on_a_root_that_is_read_only(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    made = ContainerRoot(tmp_path / "made", CONTAINERS / "broker.Containerfile")
    said = tmp_path / "said"
    status = made.root.run(made.script(_BROKER), said, writable=made.workdir, network=False)
    text = said.read_text()
    assert status == 0, text[-5000:]
    assert text.count("127.0.0.1:8081 serves") >= 2
    assert "[b'kept']" in text
    assert text.count("ended with 0") == 2
    record_property("megabytes", megabytes(made.root.within(Path("/opt/lakebroker"))))


def test_the_jobs_fill_a_lake_and_are_asked(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    made = ContainerRoot(tmp_path / "made", CONTAINERS / "jobs.Containerfile")
    home = made.root.within(made.workdir)
    written(home / "store", "broker-a", 300)
    user, group = map(int, the(CONTAINERS / "jobs.Containerfile", "USER").split(":"))
    for folder, _, files in os.walk(home):
        for path in (folder, *(os.path.join(folder, name) for name in files)):
            os.chown(path, user, group)
    said = tmp_path / "said"
    status = made.root.run(made.script(_JOBS), said, writable=made.workdir)
    text = said.read_text()
    assert status == 0, text[-5000:]
    assert text.count("ended with 0") == 1
    record_property("megabytes", megabytes(made.root.within(Path("/opt/lakebroker"))))


def megabytes(folder: Path) -> int:
    done = subprocess.run(["du", "-sm", str(folder)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])
