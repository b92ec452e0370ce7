"""Brokers, a Spark cluster and its driver, each on a host of its own; what they share is an object store.

No host sees another's files: neither a broker's store nor the driver's token and scratch are there for a worker. In short, each of
these is shown elsewhere: such hosts and a worker that is killed by test_spark_submit.py, fair shares and brokers that fall silent by
tests/integration/test_several_brokers.py, that `--master` and `--driver-host` reach Spark by
tests/unit/structured_streaming/test_reput.py.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable

from lakebroker_testing.gateway import ROOT, Gateway, Reput, command
from lakebroker_testing.logs import written
from store.log_reader import LogReader
from tests.suite.evidence import LONG
from tests.support.lakes.checks import assert_exact, rows
from tests.support.machines.hosts import Host, Hosts
from tests.support.machines.object_store import BUCKET, object_store
from tests.support.spark.cluster import Cluster, Place
from tests.support.waiting import wait_until

BATCH = 2 << 20
RECORDS, BODY = 8000, 4000
PORT = 8081
LAKE = f"s3://{BUCKET}/lake"
BROKERS = ("broker-a", "broker-b", "broker-c")


class Part(NamedTuple):
    """What a batch holds of a broker's log."""

    start: int
    end: int


Batches = list[dict[str, Part]]
"""Parts by broker, in the order of the lake's batches."""


def committed() -> Batches:
    """By the progress rows."""
    if not DeltaTable.is_deltatable(f"{LAKE}/reput_progress"):
        return []
    found: dict[int, dict[str, Part]] = {}
    for row in rows(LAKE, "reput_progress", ["batch", "broker", "start_offset", "end_offset"]).to_pylist():
        found.setdefault(row["batch"], {})[row["broker"]] = Part(row["start_offset"], row["end_offset"])
    return [found[number] for number in sorted(found)]


def wait_for(reached: Callable[[Batches], bool], reput: Reput, what: str) -> Batches:
    """The batches, once they are as they should become."""
    batches: Batches = []

    def there() -> bool:
        batches[:] = committed()
        reput.batches()  # raises when it ended
        return reached(batches)

    wait_until(there, lambda: f"{what}: {batches[-5:]}\n{reput.log.read_text()[-5000:]}\nthat")
    return batches


def of(broker: str, batches: Batches) -> list[Part]:
    return [each[broker] for each in batches if broker in each]


def end_of(host: Host) -> int:
    """Where a broker's log ends now."""
    reader = LogReader(host.folder / "store")
    try:
        return reader.readable_offset
    finally:
        reader.close()


def gateway(host: Host) -> Gateway:
    """A gateway on a host, over a log of many batches; it has the token, and TLS."""
    written(host.folder / "store", host.name, RECORDS, BODY)
    addresses = dict.fromkeys(("grpcBindAddress", "bindAddress", "brokerIP1"), host.address)
    options = {"brokerName": host.name, "grpcServerPort": str(PORT), "lakeTokenFile": str(secret(host))}
    return Gateway(host.folder, wrapper=host.wrapper, **addresses, **options)


def secret(host: Host) -> Path:
    """A host's file of the token."""
    file = host.folder / "token"
    file.write_text("0123456789abcdef-secret\n")
    file.chmod(0o600)
    return file


def place(host: Host) -> Place:
    return Place(host.address, host.wrapper, host.folder)


@LONG
@pytest.mark.timeout(900)
def test_hosts_that_share_nothing_but_the_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Hosts(tmp_path) as hosts:
        brokers = [hosts.add(name) for name in BROKERS]
        cluster_hosts = [hosts.add(name) for name in ("master", "worker-0", "worker-1")]
        driver = hosts.add("driver")
        with object_store(tmp_path / "hosts" / "objects", hosts.address) as objects:
            for name, value in objects.environment.items():
                monkeypatch.setenv(name, value)
            gateways = [gateway(host) for host in brokers]
            try:
                for each in gateways:
                    each.start()
                with Cluster([place(each) for each in cluster_hosts]) as cluster:
                    survive(gateways, brokers, cluster, cluster_hosts[1:], driver)
            finally:
                for each in gateways:
                    each.__exit__()
            stores = [each.store for each in gateways]
            assert assert_exact(LAKE, *stores)["messages"] == len(stores) * RECORDS
            check = command("lake", "check", "--lake", LAKE, "--store", ",".join(map(str, stores)))
            checked = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stdout + checked.stderr


def survive(
    gateways: list[Gateway], brokers: list[Host], cluster: Cluster, workers: list[Host], driver: Host
) -> None:
    """A broker that is silent from the start; a worker, then a broker killed in mid-stream."""
    ends = {each.name: end_of(each) for each in brokers}
    assert min(ends.values()) > 8 * BATCH
    token, authorities, scratch = secret(driver), driver.folder / "ca.pem", driver.folder / "tmp"
    own = [each.store / "config" / "trial-certificate.pem" for each in gateways]
    authorities.write_bytes(b"".join(each.read_bytes() for each in own))
    scratch.mkdir()
    for host in (*workers, driver, *brokers):
        for other in (*brokers, driver):
            files = [other.folder / "store"] if other in brokers else [token, authorities, scratch]
            assert [host.sees(each) for each in files] == [host is other] * len(files)

    silent = gateways[2].process
    assert silent is not None
    silent.send_signal(signal.SIGSTOP)
    arguments = (
        *("--brokers", ",".join(f"{each.address}:{PORT}" for each in brokers)),
        *("--token-file", str(token), "--tls-ca", str(authorities)),
        *("--master", cluster.master, "--driver-host", driver.address),
        *("--batch-bytes", str(BATCH), "--trigger", "1s"),
    )
    wrapper = (*driver.wrapper, "env", f"TMPDIR={scratch}")
    with Reput(LAKE, driver.folder / "reput.log", *arguments, wrapper=wrapper) as reput:
        batches = wait_for(lambda found: len(found) > 3, reput, "nobody waits for the silent one")
        assert all(each.keys() == {"broker-a", "broker-b"} for each in batches[1:])

        wait_for(lambda _: len(cluster.ran()) == 2, reput, "both workers have an executor")
        killed_at = len(committed())
        workers[0].kill()
        batches = wait_for(lambda found: len(found) > killed_at + 2, reput, "one worker is enough")
        assert "broker-c" not in batches[-1]

        silent.send_signal(signal.SIGCONT)
        wait_for(lambda found: found[-1].keys() == set(BROKERS), reput, "all three share a batch")

        gateways[0].kill()
        dead_at = len(committed())
        batches = wait_for(
            lambda found: len(found) > dead_at + 3 and "broker-a" not in found[-1], reput, "two go on"
        )
        assert of("broker-a", batches)[-1].end < ends["broker-a"]
        assert of("broker-b", batches)[-1].end < ends["broker-b"]
        gateways[0].start()

        def all_there(found: Batches) -> bool:
            return all(of(each.name, found)[-1].end == end_of(each) for each in brokers)

        batches = wait_for(all_there, reput, "everything is there")
        assert reput.stop() == 0, reput.log.read_text()[-3000:]
    assert_shares(batches, ends)
    for number in (2, 3):  # which ends alone, if any, is a matter of time
        assert any(len(each) == number for each in batches)
    said = reput.log.read_text()
    assert "Traceback" not in said
    assert f"{brokers[2].address}:{PORT} answers again" in said


def assert_shares(batches: Batches, ends: dict[str, int]) -> None:
    """No log got more than its share of a batch while the others had as much left, and each goes on where it was."""
    reached = dict.fromkeys(ends, 0)
    for batch in batches:
        share = BATCH // len(batch)
        sizes = {broker: part.end - part.start for broker, part in batch.items()}
        assert sum(sizes.values()) <= BATCH
        for broker, part in batch.items():
            assert part.start == reached[broker]
            reached[broker] = part.end
        if all(ends[broker] - part.start >= share for broker, part in batch.items()):
            assert max(sizes.values()) <= share, batch
