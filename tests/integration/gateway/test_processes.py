"""`lakebroker gateway --processes N`: brokers that know of each other under one supervisor."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from broker_gateway.app.supervisor import _check_root
from broker_gateway.protocol.body.route import ClusterInfo
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.runtime.errors import HostError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.official_client import OfficialClient
from lakebroker_testing.prestarted import run
from store.log.recovery import IDENTITY_FILE
from tests.suite.evidence import LONG
from tests.support.brokers.clusters import Host, routes
from tests.support.peers.raw_http2 import GOAWAY, RawPeer
from tests.support.rocketmq.requests import invoke
from tests.support.waiting import LIMIT_S, wait_until


@contextmanager
def two_brokers(folder: Path, *, with_name_server: bool = False) -> Iterator[Host]:
    started = Host(folder, with_name_server=with_name_server)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.terminate()
            started.process.wait(LIMIT_S)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """For tests that leave it as they found it, with topics of their own; the last of them ends it."""
    with two_brokers(tmp_path_factory.mktemp("host")) as started:
        yield started


@pytest.fixture(scope="module")
def with_name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """As `shared`, with a name server in the first broker."""
    with two_brokers(tmp_path_factory.mktemp("named"), with_name_server=True) as started:
        yield started


def test_brokers_know_of_each_other_and_a_dead_one_comes_back(shared: Host) -> None:
    first, second = shared.brokers()
    assert (first["name"], second["name"]) == ("broker-a-0", "broker-a-1")
    both = {first["name"]: (first["grpc"], 8), second["name"]: (second["grpc"], 8)}
    wait_until(lambda: routes(first["grpc"], "t") == both and routes(second["grpc"], "t") == both)

    at_second = Client(f"127.0.0.1:{second['grpc']}")
    assert at_second.send("t", b"kept").status.code == pb.OK
    at_second.channel.close()
    os.kill(second["pid"], signal.SIGKILL)
    wait_until(lambda: routes(first["grpc"], "t") == {first["name"]: (first["grpc"], 8)})
    returned = wait_until(
        lambda: (
            {each["name"]: each for each in shared.brokers()}.get("broker-a-1", second)["pid"]
            != second["pid"]
            and shared.brokers()[1]
        )
    )
    wait_until(lambda: len(routes(first["grpc"], "t")) == 2)
    again = Client(f"127.0.0.1:{returned['grpc']}")
    code, messages = again.receive("t", "g")
    assert (code, [message.body for message in messages]) == (pb.OK, [b"kept"])
    again.channel.close()


def test_an_official_client_uses_both(shared: Host) -> None:
    ports = {each["grpc"] for each in shared.brokers()}
    first = min(ports)
    run("topic", "create", "shared", "--queues", "2", "--gateway", f"127.0.0.1:{first}", check=True)
    assert all({queues for _, queues in routes(port, "shared").values()} == {2} for port in ports)
    with OfficialClient() as official:
        official.call("producer", endpoints=f"127.0.0.1:{first}", topics=["shared"])
        official.call("send", topic="shared", bodies=[f"m{number}" for number in range(40)])
        official.call(
            "push", endpoints=f"127.0.0.1:{first}", group="g", topics={"shared": "*"}, fail={}, threads=2
        )
        wait_until(lambda: len(official.call("consumed")["messages"]) >= 40)
    sent = {}
    for port in ports:
        client = Client(f"127.0.0.1:{port}")
        sent[port] = len(client.receive("shared", "other", batch=32)[1])
        client.channel.close()
    assert all(sent.values()), f"one broker got everything: {sent}"


def ended(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """What became of two brokers that do not start."""
    return run("gateway", "--processes", "2", "--store", str(store), *options)


def test_what_one_erases_the_other_erases_too(shared: Host) -> None:
    clients = [Client(f"127.0.0.1:{each['grpc']}") for each in shared.brokers()]
    for client in clients:
        for key in ("gone", "stays"):
            assert client.send("people", key.encode(), keys=[key]).status.code == pb.OK
    answer = clients[0].erase("people", keys=["gone"])
    (other,) = answer.others
    assert {answer.broker, other.broker} == {each["name"] for each in shared.brokers()}
    assert (len(answer.records), len(other.records), other.new_records) == (1, 1, 1)
    for client in clients:
        assert [each.body for each in client.receive("people", "g")[1]] == [b"stays"]
        client.close()


def test_brokers_of_one_host_hand_over_without_a_name_server(shared: Host) -> None:
    first, second = shared.brokers()
    ports = first["grpc"], second["grpc"]
    for port in ports:
        wait_until(lambda port=port: len(routes(port, "ordered")) == 2)
    clients = [Client(f"127.0.0.1:{port}") for port in ports]
    for number in range(8):
        for client in clients:
            sent = client.send(
                "ordered", str(number).encode(), message_type=pb.FIFO, message_group=f"g{number % 4}"
            )
            assert sent.status.code == pb.OK
    found: dict[str, set[tuple[int, int]]] = {}
    for number, client in enumerate(clients):
        while messages := client.receive("ordered", "readers")[1]:
            for each in messages:
                system = each.system_properties
                found.setdefault(system.message_group, set()).add((number, system.queue_id))
        client.channel.close()
    assert {group: len(places) for group, places in found.items()} == {f"g{each}": 1 for each in range(4)}
    assert len({next(iter(places))[0] for places in found.values()}) == 2, "some at each broker"


@LONG  # that all end is a unit test of the supervisor, what a broker says is in test_start.py
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


def test_a_second_supervisor_is_refused_and_takes_nothing_away(shared: Host) -> None:
    before = sorted(path.name for path in (shared.stores / "processes").iterdir())
    done = ended(shared.stores)
    assert done.returncode == 254
    assert done.stderr.splitlines()[-1].startswith(
        "lakebroker: another `lakebroker gateway --processes` runs in "
    )
    assert sorted(path.name for path in (shared.stores / "processes").iterdir()) == before


def test_files_that_cannot_be_written_stop_no_broker(shared: Host) -> None:
    first, second = shared.brokers()
    died = shared.log.read_text().count("a broker died")
    shutil.rmtree(shared.stores / "processes")
    os.kill(second["pid"], signal.SIGKILL)
    wait_until(lambda: "cannot be told" in shared.log.read_text())
    wait_until(lambda: shared.log.read_text().count("a broker died") > died + 1)  # many looks later
    assert shared.log.read_text().count("cannot be told") == 1
    assert shared.process.poll() is None
    assert routes(first["grpc"], "t")
    (shared.stores / "processes").mkdir()
    wait_until(lambda: shared.brokers()[1]["pid"] != second["pid"])
    wait_until(lambda: len(routes(first["grpc"], "t")) == 2)


def test_a_folder_that_cannot_be_made_is_one_error() -> None:
    done = ended(Path("/dev/null/x"))
    assert done.returncode == 254
    assert "Traceback" not in done.stderr
    assert "the folder /dev/null/x cannot be used" in done.stderr


def test_a_signal_to_the_supervisor_alone_stops_all_in_an_orderly_way(shared: Host) -> None:
    """Brokers see the end of their standard input."""
    brokers, before = shared.brokers(), len(shared.log.read_text())
    shared.process.terminate()
    assert shared.process.wait(LIMIT_S) == 0
    assert shared.log.read_text()[before:].count(" stopped ") == 2
    assert not shared.ports.exists()
    assert not any(Path(f"/proc/{broker['pid']}").exists() for broker in brokers)
    assert not list(shared.stores.glob("*/abort"))


def test_all_brokers_register_with_the_name_server_in_the_first_of_them(with_name_server: Host) -> None:
    names = {each["name"] for each in with_name_server.brokers()}
    address = f"127.0.0.1:{with_name_server.name_server_port}"

    def known() -> set[str]:
        answer = invoke(address, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
        return set(ClusterInfo.decode(answer.body).broker_addr_table)

    wait_until(lambda: known() == names)


def open_files(pid: int) -> set[str]:
    """What its descriptors are of; nothing of a process that has ended."""
    found = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            found.add(os.readlink(each))
    return found


def test_brokers_that_got_the_signal_already_are_let_end(with_name_server: Host) -> None:
    """As of ctrl-C in a terminal, or of a control group, on a host so busy that the supervisor looks late."""
    host = with_name_server
    first, second = host.brokers()
    with RawPeer(f"127.0.0.1:{first['grpc']}") as peer:  # the broker waits for its call
        method = "/apache.rocketmq.v2.MessagingService/Telemetry"
        peer.send(peer.request(1, method, None, ("x-mq-client-id", "c")))
        host.process.send_signal(signal.SIGSTOP)
        for each in (first, second, {"pid": host.process.pid}):
            os.kill(each["pid"], signal.SIGINT)
        peer.until(lambda each: each.kind == GOAWAY)
        wait_until(lambda: not Path(f"/proc/{second['pid']}/fd/0").exists())  # a zombie at most
        assert Path(f"/proc/{first['pid']}").exists()
        told = os.readlink(f"/proc/{first['pid']}/fd/0")
        host.process.send_signal(signal.SIGCONT)
        # the supervisor has told all to end, and waits for the first
        wait_until(lambda: told not in open_files(host.process.pid))
    assert host.process.wait(LIMIT_S) == 0
    assert "second signal" not in host.log.read_text()
    assert not list(host.stores.glob("*/abort"))


@LONG  # their standard input ends then, which test_stop_signals.py shows for one
def test_brokers_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with two_brokers(tmp_path) as host:
        pids = [each["pid"] for each in host.brokers()]
        host.process.kill()
        host.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
        assert not list(host.stores.glob("*/abort"))
