"""`lakebroker gateway --processes N`: brokers that know of each other under one supervisor."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from broker_gateway.app.supervisor import _check_root
from broker_gateway.runtime.errors import HostError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.official_client import OfficialClient
from store.log.recovery import IDENTITY_FILE
from tests.support.brokers.clusters import Host, routes, wait_for
from tests.support.peers.raw_http2 import RawPeer


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    started = Host(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(30)


def test_brokers_know_of_each_other_and_a_dead_one_comes_back(host: Host) -> None:
    first, second = host.brokers()
    assert (first["name"], second["name"]) == ("broker-a-0", "broker-a-1")
    both = {first["name"]: (first["grpc"], 8), second["name"]: (second["grpc"], 8)}
    wait_for(lambda: routes(first["grpc"], "t") == both and routes(second["grpc"], "t") == both)

    at_second = Client(f"127.0.0.1:{second['grpc']}")
    assert at_second.send("t", b"kept").status.code == pb.OK
    at_second.channel.close()
    os.kill(second["pid"], signal.SIGKILL)
    wait_for(lambda: routes(first["grpc"], "t") == {first["name"]: (first["grpc"], 8)})
    returned = wait_for(
        lambda: (
            {each["name"]: each for each in host.brokers()}.get("broker-a-1", second)["pid"] != second["pid"]
            and host.brokers()[1]
        )
    )
    wait_for(lambda: len(routes(first["grpc"], "t")) == 2)
    again = Client(f"127.0.0.1:{returned['grpc']}")
    code, messages = again.receive("t", "g")
    assert (code, [message.body for message in messages]) == (pb.OK, [b"kept"])
    again.channel.close()

    host.process.terminate()
    assert host.process.wait(30) == 0
    assert not host.ports.exists()
    for broker in (first, returned):
        assert not Path(f"/proc/{broker['pid']}").exists()


def test_an_official_client_uses_both(host: Host) -> None:
    ports = {each["grpc"] for each in host.brokers()}
    first = min(ports)
    created = subprocess.run(
        command("topic", "create", "shared", "--queues", "2", "--gateway", f"127.0.0.1:{first}"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert created.returncode == 0, created.stderr
    assert all({queues for _, queues in routes(port, "shared").values()} == {2} for port in ports)
    with OfficialClient() as official:
        official.call("producer", endpoints=f"127.0.0.1:{first}", topics=["shared"])
        official.call("send", topic="shared", bodies=[f"m{number}" for number in range(40)])
        official.call(
            "push", endpoints=f"127.0.0.1:{first}", group="g", topics={"shared": "*"}, fail={}, threads=2
        )
        wait_for(lambda: len(official.call("consumed")["messages"]) >= 40)
    sent = {}
    for port in ports:
        client = Client(f"127.0.0.1:{port}")
        sent[port] = len(client.receive("shared", "other", batch=32)[1])
        client.channel.close()
    assert all(sent.values()), f"one broker got everything: {sent}"


def ended(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What became of two brokers that do not start."""
    arguments = command("gateway", "--processes", "2", "--store", str(store), *options)
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_what_one_erases_the_other_erases_too(host: Host) -> None:
    clients = [Client(f"127.0.0.1:{each['grpc']}") for each in host.brokers()]
    for client in clients:
        for key in ("gone", "stays"):
            assert client.send("t", key.encode(), keys=[key]).status.code == pb.OK
    answer = clients[0].erase("t", keys=["gone"])
    (other,) = answer.others
    assert {answer.broker, other.broker} == {each["name"] for each in host.brokers()}
    assert (len(answer.records), len(other.records), other.new_records) == (1, 1, 1)
    for client in clients:
        assert [each.body for each in client.receive("t", "g")[1]] == [b"stays"]
        client.close()


def test_a_broker_that_cannot_start_stops_all(tmp_path: Path) -> None:
    done = ended(tmp_path, "--set", "tlsCertPath=/nowhere")
    assert not list(tmp_path.iterdir()), "a single broker may begin there"
    assert done.returncode == 253
    assert "tlsKeyPath is missing" in done.stderr + done.stdout


def test_a_folder_that_is_a_store_already_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        assert gateway.terminate() == 0
    before = sorted(path.name for path in gateway.store.iterdir())
    done = ended(gateway.store)
    assert done.returncode == 255
    assert f"lakebroker: {gateway.store} is the store of one broker" in done.stderr
    assert "start it without --processes" in done.stderr
    assert sorted(path.name for path in gateway.store.iterdir()) == before


def test_stores_that_no_broker_has_are_named(tmp_path: Path) -> None:
    for name in ("broker-a-0", "broker-a-1", "other-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / IDENTITY_FILE).touch()
    with structlog.testing.capture_logs() as lines:
        _check_root(tmp_path, {"broker-a-0"})
    (line,) = lines
    assert line["stores"] == [str(tmp_path / "broker-a-1"), str(tmp_path / "other-0")]


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 300)  # of other users, who may not be looked into, root has none
    with pytest.raises(HostError, match=r"the folder .*xxx cannot be used: .*give another one \(--store\)"):
        _check_root(folder, set())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_process_group_stops_all_in_an_orderly_way(host: Host, number: int) -> None:
    os.killpg(host.process.pid, number)
    assert host.process.wait(60) == 0
    assert host.log.read_text().count(" stopped ") == 2
    assert not list(host.stores.glob("*/abort"))


def test_brokers_that_got_the_signal_already_are_let_end(host: Host) -> None:
    """As in a control group, of a host so busy that the supervisor looks late."""
    first, _ = host.brokers()
    with RawPeer(f"127.0.0.1:{first['grpc']}") as peer:  # the broker waits for its call
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        peer.send(peer.request(1, method, None, ("x-mq-client-id", "c")))
        host.process.send_signal(signal.SIGSTOP)
        for each in (*host.brokers(), {"pid": host.process.pid}):
            os.kill(each["pid"], signal.SIGTERM)
        time.sleep(2)
        assert Path(f"/proc/{first['pid']}").exists()
        host.process.send_signal(signal.SIGCONT)
        assert host.process.wait(60) == 0
    assert "second signal" not in host.log.read_text()
    assert not list(host.stores.glob("*/abort"))


def test_brokers_end_with_a_supervisor_that_is_killed(host: Host) -> None:
    pids = [each["pid"] for each in host.brokers()]
    host.process.kill()
    host.process.wait()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
    assert not list(host.stores.glob("*/abort"))


def test_a_second_supervisor_is_refused_and_takes_nothing_away(host: Host) -> None:
    before = sorted(path.name for path in (host.stores / "processes").iterdir())
    done = ended(host.stores)
    assert done.returncode == 254
    assert done.stderr.splitlines()[-1].startswith(
        "lakebroker: another `lakebroker gateway --processes` runs in "
    )
    assert sorted(path.name for path in (host.stores / "processes").iterdir()) == before


def test_files_that_cannot_be_written_stop_no_broker(host: Host) -> None:
    first, second = host.brokers()
    shutil.rmtree(host.stores / "processes")
    os.kill(second["pid"], signal.SIGKILL)
    wait_for(lambda: "cannot be told" in host.log.read_text())
    time.sleep(1)
    assert host.log.read_text().count("cannot be told") == 1
    assert host.process.poll() is None
    assert routes(first["grpc"], "t")
    (host.stores / "processes").mkdir()
    wait_for(lambda: len(routes(first["grpc"], "t")) == 2, 60)


def test_a_broker_that_does_not_end_is_killed_at_a_second_signal(host: Host) -> None:
    first, second = host.brokers()
    os.kill(second["pid"], signal.SIGSTOP)
    host.process.terminate()
    wait_for(lambda: not Path(f"/proc/{first['pid']}").exists())
    with pytest.raises(subprocess.TimeoutExpired):
        host.process.wait(2)
    host.process.terminate()
    assert host.process.wait(30) == 128 + signal.SIGKILL
    assert "brokers=['broker-a-1']" in host.log.read_text().splitlines()[-1]


def test_a_folder_that_cannot_be_made_is_one_error() -> None:
    done = ended(Path("/dev/null/x"))
    assert done.returncode == 254
    assert "Traceback" not in done.stderr
    assert "the folder /dev/null/x cannot be used" in done.stderr
