"""Gateways, our name server, and peers that misbehave: lists of name servers, data versions, routes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.cluster import registrar, requests
from broker_gateway.cluster.requests import Identity
from broker_gateway.config.registration import RegistrationOptions
from broker_gateway.metadata.catalog import Topic
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.route import ClusterInfo
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import Connection, Processors
from broker_gateway.transport.remoting.server import RemotingServer
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway, NameServer
from tests.support.brokers.clusters import QUICK, routes
from tests.support.brokers.gateways import answer, create, goodbye_was_late, lakebroker
from tests.support.brokers.running import running
from tests.support.rocketmq.requests import invoke
from tests.support.waiting import LIMIT_S, LoopClock, in_time, until, wait_until


def brokers(name_server: str) -> dict[str, str]:
    answer = invoke(name_server, Command(RequestCode.GET_BROKER_CLUSTER_INFO))
    table = ClusterInfo.decode(answer.body).broker_addr_table
    return {name: each.broker_addrs[0] for name, each in table.items()}


def has_left(gateway: Gateway, name_server: str) -> bool:
    """Whether this name server knows no broker behind the gateway's end, or was too busy for its goodbye."""
    return not brokers(name_server) or goodbye_was_late(gateway.log.read_text(), name_server)


def version_at(name_server: str, gateway: Gateway) -> DataVersion | None:
    """The data version that the name server holds for `broker-a`; None while it does not know the broker."""
    identity = Identity("DefaultCluster", "broker-a", f"127.0.0.1:{gateway.remoting_port}", "")
    fields = identity.fields()
    answer = invoke(
        name_server, Command(RequestCode.QUERY_DATA_VERSION, fields, DataVersion(counter=-1).encode())
    )
    return DataVersion.decode(answer.body) if answer.body else None


def said_of(gateway: Gateway, text: str, names: Iterable[str]) -> bool:
    """Whether the gateway has logged this once of each of them; others may be late on a busy machine, and are logged too."""
    lines = [line for line in gateway.log.read_text().splitlines() if text in line]
    return all(sum(name in line for line in lines) == 1 for name in names)


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[NameServer]:
    with NameServer(tmp_path / "namesrv") as started:
        yield started


@contextlib.contextmanager
def beside(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """Runs `work` on an event loop of its own until the block ends; it returns when its event is set."""
    ready = threading.Event()
    kept: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        ended = asyncio.Event()
        kept.append((asyncio.get_running_loop(), ended))
        ready.set()
        await work(ended)

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    ready.wait(LIMIT_S)
    try:
        yield
    finally:
        loop, ended = kept[0]
        loop.call_soon_threadsafe(ended.set)
        thread.join(LIMIT_S)


def test_a_name_server_in_the_same_process(tmp_path: Path) -> None:
    options = {"lakeWithNamesrv": "true", **QUICK}
    with Gateway(tmp_path, **options) as gateway:
        own = f"127.0.0.1:{gateway.name_server_port}"
        wait_until(lambda: brokers(own) == {"broker-a": f"127.0.0.1:{gateway.remoting_port}"})
        shown = invoke(f"127.0.0.1:{gateway.remoting_port}", Command(RequestCode.GET_BROKER_CONFIG)).body
        assert f"grpcServerPort={gateway.grpc_port}\n".encode() in shown
        assert f"listenPort={gateway.remoting_port}\n".encode() in shown
        news = {"minBrokerId": "0", "minBrokerAddr": "h:1"}
        told = Command(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, news)
        assert invoke(f"127.0.0.1:{gateway.remoting_port}", told).code == ResponseCode.SUCCESS
        assert gateway.terminate() == 0
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", gateway.name_server_port)) != 0


def test_data_versions_go_on_after_a_crash(tmp_path: Path, name_server: NameServer) -> None:
    with Gateway(tmp_path / "g", namesrvAddr=name_server.address, **QUICK) as gateway:
        create(gateway, "one")
        create(gateway, "two")

        def counted(count: int) -> DataVersion | None:
            version = version_at(name_server.address, gateway)
            return version if version is not None and version.counter == count else None

        wait_until(lambda: counted(2))
        before = counted(2)
        assert before is not None
        gateway.kill()
        gateway.start()
        wait_until(lambda: version_at(name_server.address, gateway) == before)
        create(gateway, "three")
        wait_until(lambda: counted(3))
        after = counted(3)
        assert after is not None
        assert after.timestamp > before.timestamp


def test_the_address_server_moves_the_broker(tmp_path: Path, name_server: NameServer) -> None:
    """Its list names one name server, then another: the broker leaves the first."""
    listed = tmp_path / "www" / "rocketmq" / "mine"
    listed.parent.mkdir(parents=True)
    listed.write_text(f"{name_server.address}\n")
    files = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "www"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), files)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    options = {
        "fetchNamesrvAddrByAddressServer": "true",
        "rmqAddressServerDomain": f"127.0.0.1:{server.server_port}",
        "rmqAddressServerSubGroup": "mine",
        "fetchNamesrvAddrInterval": "1000",
    }
    try:
        with NameServer(tmp_path / "other") as other, Gateway(tmp_path / "g", **options) as gateway:
            wait_until(lambda: "broker-a" in brokers(name_server.address))
            listed.write_text("nonsense")
            wait_until(lambda: "gives no name servers" in gateway.log.read_text())
            assert "broker-a" in brokers(name_server.address)
            staged = listed.with_suffix(".new")
            staged.write_text(f"{other.address}\n")
            staged.rename(listed)
            wait_until(lambda: "broker-a" in brokers(other.address))
            wait_until(lambda: not brokers(name_server.address))
            here = f"127.0.0.1:{gateway.remoting_port}"
            for addresses, there, gone in (
                (name_server.address, name_server.address, other.address),
                ("", other.address, name_server.address),
            ):
                change = Command(RequestCode.UPDATE_BROKER_CONFIG, {}, f"namesrvAddr={addresses}\n".encode())
                assert invoke(here, change).code == 0
                wait_until(lambda there=there: "broker-a" in brokers(there))  # type: ignore[misc]
                wait_until(lambda gone=gone: not brokers(gone))  # type: ignore[misc]
            assert gateway.terminate() == 0
            assert has_left(gateway, other.address)
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def tasks_of(gateway: Gateway) -> set[str]:
    return {row["name"] for row in answer(gateway, "tasks")}


def test_a_changed_list_moves_the_broker_while_it_runs(tmp_path: Path, name_server: NameServer) -> None:
    """From none to one, to another, back and forth, to none; what is in the file counts at the next start."""
    file = tmp_path / "broker.conf"
    file.write_text("# nothing yet\n")
    with (
        NameServer(tmp_path / "other") as other,
        Gateway(tmp_path / "g", config_file=file, **QUICK) as gateway,
    ):
        here = f"127.0.0.1:{gateway.remoting_port}"

        def change(addresses: str) -> Command:
            body = f"namesrvAddr={addresses}\n".encode()
            return invoke(here, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, body))

        create(gateway, "t")
        assert "name-servers" not in tasks_of(gateway)
        assert change(name_server.address).code == 0
        wait_until(lambda: brokers(name_server.address) == {"broker-a": here})
        assert "name-servers" in tasks_of(gateway)
        refused = change(f"{other.address};nowhere")
        assert refused.code == ResponseCode.INVALID_PARAMETER
        assert "'nowhere'" in (refused.remark or "")
        assert change(other.address).code == 0
        wait_until(lambda: brokers(other.address) == {"broker-a": here})
        wait_until(lambda: not brokers(name_server.address))
        for _ in range(5):
            assert change(name_server.address).code == 0
            assert change(f"{name_server.address};{other.address}").code == 0
            assert change(other.address).code == 0
        wait_until(lambda: not brokers(name_server.address))
        wait_until(lambda: brokers(other.address) == {"broker-a": here})
        create(gateway, "later")
        for topic in ("later", "t"):
            route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            wait_until(lambda route=route: invoke(other.address, route).code == 0)
        assert brokers(other.address) == {"broker-a": here}, "no late word of its leaving came behind"
        assert change("").code == 0
        wait_until(lambda: not brokers(other.address))
        assert "name-servers" not in tasks_of(gateway)
        assert change(name_server.address).code == 0
        gateway.kill()
        gateway.start()
        wait_until(lambda: "broker-a" in brokers(name_server.address))
        assert gateway.terminate() == 0
        assert has_left(gateway, name_server.address)
        assert "Traceback" not in gateway.log.read_text()


def test_who_comes_back_to_a_name_server_registers_behind_its_leaving(tmp_path: Path) -> None:
    """It takes its time to answer that the broker left."""

    async def scenario() -> None:
        order, leaves, answers = list[int](), asyncio.Event(), asyncio.Event()

        async def slow(_: Connection, request: Command) -> Command:
            if request.code == RequestCode.UNREGISTER_BROKER:
                leaves.set()
                await answers.wait()
            if request.code in (RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER):
                order.append(request.code)
            return request.reply()

        server = RemotingServer(Processors(default=slow))
        await server.start("127.0.0.1", 0)
        address = f"127.0.0.1:{server.port}"
        async with running(tmp_path, namesrvAddr=address) as broker:
            broker.registration.start(5)
            await until(lambda: order == [RequestCode.REGISTER_BROKER])
            await broker.configuration.apply({"namesrvAddr": ""})
            await leaves.wait()
            for addresses in (address, "", address):
                await broker.configuration.apply({"namesrvAddr": addresses})
            assert order == [RequestCode.REGISTER_BROKER]
            answers.set()
            left, back = RequestCode.UNREGISTER_BROKER, RequestCode.REGISTER_BROKER
            await until(lambda: order == [back, left, left, back], lambda: order)
            await broker.configuration.apply({"namesrvAddr": ""})
            await broker.registration.stop()
            assert order[-1] == RequestCode.UNREGISTER_BROKER, "a stop waits for it"
        await server.stop()

    asyncio.run(scenario())


def test_without_name_servers_routes_name_no_others(tmp_path: Path, name_server: NameServer) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"namesrvAddr={name_server.address}\n")
    other = {"namesrvAddr": name_server.address, "brokerName": "broker-b", **QUICK}
    with (
        Gateway(tmp_path / "a", config_file=file, **QUICK) as gateway,
        Gateway(tmp_path / "b", **other) as elsewhere,
    ):
        create(elsewhere, "t")
        create(gateway, "t")
        wait_until(lambda: routes(gateway.grpc_port, "t").keys() == {"broker-a", "broker-b"})
        here = f"127.0.0.1:{gateway.remoting_port}"
        assert invoke(here, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"namesrvAddr=\n")).code == 0
        wait_until(lambda: routes(gateway.grpc_port, "t").keys() == {"broker-a"})


def test_an_emptied_list_leaves_the_broker_with_its_own_name_server(
    tmp_path: Path, name_server: NameServer
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"namesrvAddr={name_server.address}\n")
    options = {"lakeWithNamesrv": "true", **QUICK}
    with Gateway(tmp_path / "g", config_file=file, **options) as gateway:
        own, here = f"127.0.0.1:{gateway.name_server_port}", f"127.0.0.1:{gateway.remoting_port}"
        wait_until(lambda: brokers(own) == brokers(name_server.address) == {"broker-a": here})
        assert invoke(here, Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"namesrvAddr=\n")).code == 0
        wait_until(lambda: not brokers(name_server.address))
        assert brokers(own) == {"broker-a": here}


def test_options_of_its_own_name_server_survive_a_restart(tmp_path: Path) -> None:
    options = {"lakeWithNamesrv": "true", "lakeRemoteAdmin": "true"}
    with Gateway(tmp_path, **options) as gateway:
        own = f"127.0.0.1:{gateway.name_server_port}"
        changed = Command(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableTopicList=false\n")
        assert invoke(own, changed).code == ResponseCode.SUCCESS
        assert gateway.terminate() == 0
        gateway.start()
        own = f"127.0.0.1:{gateway.name_server_port}"
        shown = invoke(own, Command(RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines()
        assert {"enableTopicList=false", "lakeRemoteAdmin=true"} <= set(shown)
        assert f"listenPort={gateway.name_server_port}" in shown
        assert gateway.terminate() == 0


def test_a_name_server_whose_host_moves_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that changes its mind stands between the host name and two name servers on one port."""
    monkeypatch.setattr(registrar, "LEAVE_TIMEOUT_S", LIMIT_S)
    with (
        NameServer(tmp_path / "a") as first,
        NameServer(tmp_path / "b", bindAddress="127.0.0.2", listenPort=str(first.port)),
    ):
        asyncio.run(_follow_a_host(tmp_path, first.port))


async def _follow_a_host(folder: Path, port: int) -> None:
    loop = asyncio.get_running_loop()
    resolve, means = loop.getaddrinfo, "127.0.0.1"

    async def moving(host: Any, *arguments: Any, **more: Any) -> Any:
        return await resolve(means if host == "names.test" else host, *arguments, **more)

    loop.getaddrinfo = moving  # type: ignore[method-assign]

    def known_at(host: str) -> bool:
        return "broker-a" in brokers(f"{host}:{port}")

    async def becomes_known(now: str, before: str) -> None:
        await asyncio.to_thread(wait_until, lambda: known_at(now) and not known_at(before))

    async with running(
        folder / "store", namesrvAddr=f"names.test:{port}", updateNameServerAddrPeriod="1000"
    ) as broker:
        broker.registration.start(5)
        await becomes_known("127.0.0.1", "127.0.0.2")
        means = "127.0.0.2"
        await becomes_known("127.0.0.2", "127.0.0.1")
        (task,) = (each for each in broker.tasks.all() if each.name == "name-servers")
        assert task.failures == 0
        await broker.registration.stop()
        assert not await asyncio.to_thread(known_at, "127.0.0.2")


def test_name_servers_that_answer_nothing_or_nonsense(tmp_path: Path, name_server: NameServer) -> None:
    """They hold up neither the registration with the third nor calls of clients."""

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(b"\xff" * 4096)
        writer.close()

    servers: list[asyncio.Server] = []

    async def serve(ended: asyncio.Event) -> None:
        servers.append(await asyncio.start_server(silent, "127.0.0.1", 0))
        servers.append(await asyncio.start_server(nonsense, "127.0.0.1", 0))
        await ended.wait()
        for each in servers:
            each.close()

    with beside(serve):
        wait_until(lambda: len(servers) == 2)
        wrong = [f"127.0.0.1:{each.sockets[0].getsockname()[1]}" for each in servers]
        listed = ";".join([*wrong, name_server.address])
        with Gateway(
            tmp_path / "g", namesrvAddr=listed, listenPort="0", registerBrokerTimeoutMills="1000"
        ) as gateway:
            wait_until(lambda: "broker-a" in brokers(name_server.address))
            wait_until(lambda: routes(gateway.grpc_port, "t") == {"broker-a": (gateway.grpc_port, 8)})
            wait_until(lambda: said_of(gateway, "does not take the registration", wrong))
            assert gateway.terminate() == 0
            assert has_left(gateway, name_server.address)


def test_brokers_that_are_no_lakebrokers_and_one_that_lies(tmp_path: Path, name_server: NameServer) -> None:
    """The first is left out, said once, as is one that names an endpoint elsewhere; of the liar, no more queues are believed
    than a topic may have."""
    asked: list[str] = []

    async def listening(name: str, host: str) -> RemotingServer:
        def config(_: Connection, request: Command) -> Command:
            asked.append(name)
            body = f"brokerName={name}\nbrokerIP1={host}\ngrpcServerPort=8081\nlakeTransport=http2\n"
            return request.reply(body=body.encode())

        processors = Processors()
        processors.register(RequestCode.GET_BROKER_CONFIG, config)
        server = RemotingServer(processors)
        await server.start("127.0.0.1", 0)
        return server

    async def register(ended: asyncio.Event) -> None:
        server, other = await listening("liar", "127.0.0.1"), await listening("misleading", "10.9.9.9")
        client = RemotingClient()
        table = {name: TopicConfig(name, 2**31 - 1, 2**31 - 1) for name in ("t", "u")}
        for name, port in (("liar", server.port), ("misleading", other.port), ("stranger", 1)):
            address = f"127.0.0.1:{port}"
            body = RegisterBrokerBody(topic_config_table=table).encode(compress=False)
            identity = Identity("DefaultCluster", name, address, address)
            await client.invoke(
                name_server.address, requests.register_broker(identity, body, compressed=False), LIMIT_S
            )
        await ended.wait()
        await client.close()
        await server.stop()
        await other.stop()

    with (
        beside(register),
        Gateway(tmp_path / "g", namesrvAddr=name_server.address, **QUICK) as gateway,
    ):
        wait_until(
            lambda: brokers(name_server.address).keys() == {"broker-a", "liar", "misleading", "stranger"}
        )
        create(gateway, "t", 2)
        expected = {"broker-a": (gateway.grpc_port, 2), "liar": (8081, 1024)}
        wait_until(lambda: routes(gateway.grpc_port, "t") == expected)
        client = Client(gateway.address)
        request = rpc.QueryAssignmentRequest(topic=pb.Resource(name="t"), group=pb.Resource(name="g"))
        assigned = client.call("QueryAssignment", request)
        assert sorted(each.message_queue.broker.name for each in assigned.assignments) == ["broker-a", "liar"]
        client.channel.close()
        wait_until(lambda: {"liar", "misleading"} <= set(asked))
        wait_until(lambda: said_of(gateway, "left out of routes", ["misleading", "stranger"]))
    # both left with their connections, and the gateway with its own
    wait_until(lambda: not brokers(name_server.address))


def test_two_brokers_of_one_name_are_told(tmp_path: Path, name_server: NameServer) -> None:
    with (
        Gateway(tmp_path / "a", namesrvAddr=name_server.address, **QUICK) as first,
        Gateway(tmp_path / "b", namesrvAddr=name_server.address, **QUICK),
    ):
        wait_until(lambda: "give each its own brokerName" in first.log.read_text())


def test_brokers_of_another_host_are_at_their_own_address(tmp_path: Path, name_server: NameServer) -> None:
    """One of the same address is where the client came to this one, whatever name it used."""
    elsewhere = {"brokerIP1": "127.0.0.2", "grpcBindAddress": "127.0.0.2", "bindAddress": "127.0.0.2"}
    with contextlib.ExitStack() as started:
        here, near, far = [
            started.enter_context(
                Gateway(
                    tmp_path / name,
                    brokerName=name,
                    namesrvAddr=name_server.address,
                    listenPort="0",
                    autoCreateTopicEnable="false",
                    lakeAutoCreateTopics="false",
                    **options,
                )
            )
            for name, options in (("here", {}), ("near", {}), ("far", elsewhere))
        ]
        create(here, "t", 1)
        create(near, "t", 2)
        lakebroker("topic", "create", "t", "--queues", "3", "--gateway", f"127.0.0.2:{far.grpc_port}")
        client = Client(here.address)

        def found(**endpoints: Any) -> dict[str, tuple[str, int, int]]:
            answer = client.call(
                "QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name="t"), **endpoints)
            )
            queues: dict[str, tuple[str, int, int]] = {}
            for each in answer.message_queues:
                address = each.broker.endpoints.addresses[0]
                count = queues.get(each.broker.name, ("", 0, 0))[2] + 1
                queues[each.broker.name] = (address.host, address.port, count)
            return queues

        wait_until(
            lambda: (
                found()
                == {
                    "here": ("127.0.0.1", here.grpc_port, 1),
                    "near": ("127.0.0.1", near.grpc_port, 2),
                    "far": ("127.0.0.2", far.grpc_port, 3),
                }
            )
        )
        by_name = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="broker.test", port=81)])
        assert found(endpoints=by_name) == {
            "here": ("broker.test", 81, 1),
            "near": ("broker.test", near.grpc_port, 2),
            "far": ("127.0.0.2", far.grpc_port, 3),
        }
        client.channel.close()


def asked_route(gateway: Gateway, topic: str) -> rpc.QueryRouteResponse:
    client = Client(gateway.address)
    try:
        answer: rpc.QueryRouteResponse = client.call(
            "QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=topic))
        )
        return answer
    finally:
        client.channel.close()


def test_a_name_server_that_hangs_hides_no_topic_of_others(tmp_path: Path, name_server: NameServer) -> None:
    """Topics that only another broker has are found at the second one, and made nowhere else."""
    with NameServer(tmp_path / "second") as second:
        options = {"namesrvAddr": f"{name_server.address};{second.address}", **QUICK}
        with (
            Gateway(tmp_path / "a", **options, brokerName="a") as a,
            Gateway(tmp_path / "b", **options, brokerName="b") as b,
        ):
            for number in range(4):
                create(b, f"t{number}", 2)
            wait_until(lambda: "a broker joined" in a.log.read_text())
            for hanging in (name_server, second):
                os.kill(hanging.process.pid, signal.SIGSTOP)
                try:
                    for number in (0, 1) if hanging is name_server else (2, 3):
                        wait_until(
                            lambda number=number: routes(a.grpc_port, f"t{number}") == {"b": (b.grpc_port, 2)}
                        )
                finally:
                    os.kill(hanging.process.pid, signal.SIGCONT)


def test_a_topic_is_not_made_while_nobody_says_who_has_it(tmp_path: Path, name_server: NameServer) -> None:
    with Gateway(tmp_path / "g", namesrvAddr=name_server.address, **QUICK) as gateway:
        wait_until(lambda: "broker-a" in brokers(name_server.address))
        # the name server has 3 s to say it
        status = in_time(
            lambda: asked_route(gateway, "before").status, lambda status: status.code == pb.PROXY_TIMEOUT
        )
        assert status.code == pb.OK
        os.kill(name_server.process.pid, signal.SIGSTOP)
        try:
            answer = asked_route(gateway, "new")
            assert answer.status.code == pb.PROXY_TIMEOUT
            assert "topic 'new'" in answer.status.message
            assert asked_route(gateway, "before").status.code == pb.OK, "what is here is served"
        finally:
            os.kill(name_server.process.pid, signal.SIGCONT)
        wait_until(lambda: asked_route(gateway, "new").status.code == pb.OK)


def test_a_broker_that_hangs_holds_up_no_route_of_others(tmp_path: Path, name_server: NameServer) -> None:
    asked: list[str] = []

    async def hangs(_: Connection, request: Command) -> Command:
        asked.append("endpoint")
        await asyncio.sleep(600)
        return request.reply()

    async def register(ended: asyncio.Event) -> None:
        processors = Processors()
        processors.register(RequestCode.GET_BROKER_CONFIG, hangs)
        server = RemotingServer(processors)
        await server.start("127.0.0.1", 0)
        client = RemotingClient()
        address = f"127.0.0.1:{server.port}"
        table = {f"t{number}": TopicConfig(f"t{number}", 8, 8) for number in range(3)}
        body = RegisterBrokerBody(topic_config_table=table).encode(compress=False)
        identity = Identity("DefaultCluster", "hangs", address, address)
        await client.invoke(
            name_server.address, requests.register_broker(identity, body, compressed=False), LIMIT_S
        )
        await ended.wait()
        await client.close()
        await server.stop()

    options = {"namesrvAddr": name_server.address, **QUICK}
    with (
        Gateway(tmp_path / "a", **options, brokerName="a") as a,
        Gateway(tmp_path / "b", **options, brokerName="b") as b,
    ):
        for number in range(3):
            create(b, f"t{number}", 2)
        wait_until(lambda: "a broker joined" in a.log.read_text())
        with beside(register):
            wait_until(lambda: "hangs" in brokers(name_server.address))
            for number in range(3):
                wait_until(lambda number=number: routes(a.grpc_port, f"t{number}") == {"b": (b.grpc_port, 2)})
            wait_until(lambda: "left out of routes" in a.log.read_text())
        assert asked


def test_every_topic_is_registered_in_its_period_however_often_one_changes(
    tmp_path: Path, name_server: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server takes a topic's route alone for no sign of life, and may have dropped another one."""
    monkeypatch.setattr(RegistrationOptions, "period_s", 0.5)  # 10 s is the least that an option may say
    dropped = {"topic": "dropped"}
    route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, dropped)

    async def scenario() -> None:
        client, changes = RemotingClient(), 0

        async def answered(command: Command) -> int:
            return (await client.invoke(name_server.address, command, LIMIT_S)).code

        async def known() -> bool:
            return await answered(route) == ResponseCode.SUCCESS

        async def known_again() -> bool:
            nonlocal changes
            changes += 1  # far more often than every period
            broker.catalog.put_topic(Topic(f"changes-{changes}", 1, 1))
            await clock.move(0.2)
            return await known()

        clock = LoopClock()
        options = {"namesrvAddr": name_server.address, "enableSingleTopicRegister": "true"}
        async with running(tmp_path / "store", **options) as broker:
            broker.registration.start(5)
            broker.catalog.put_topic(Topic("dropped", 1, 1))
            await clock.until(known)
            assert (
                await answered(Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, dropped)) == ResponseCode.SUCCESS
            )
            assert not await known()
            await clock.until(known_again)
            assert changes > 2
            await broker.registration.stop()
        await client.close()

    asyncio.run(scenario())


def test_a_topic_is_registered_before_its_period_ends(tmp_path: Path, name_server: NameServer) -> None:
    async def scenario() -> None:
        client = RemotingClient()

        async def known(topic: str) -> bool:
            command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            answer = await client.invoke(name_server.address, command, LIMIT_S)
            return answer.code == ResponseCode.SUCCESS

        clock = LoopClock()
        async with running(tmp_path / "store", namesrvAddr=name_server.address) as broker:
            broker.registration.start(5)
            broker.catalog.put_topic(Topic("first", 1, 1))
            await clock.until(lambda: known("first"))
            broker.catalog.put_topic(Topic("second", 1, 1))
            await clock.move(1.0)  # much less than the period
            await clock.until(lambda: known("second"))
            await broker.registration.stop()
        await client.close()

    asyncio.run(scenario())


def test_what_a_topic_of_others_accepts_is_told(tmp_path: Path, name_server: NameServer) -> None:
    options = {"namesrvAddr": name_server.address, **QUICK}
    with (
        Gateway(tmp_path / "a", **options, brokerName="a") as a,
        Gateway(tmp_path / "b", **options, brokerName="b") as b,
    ):
        create(b, "fifo", 2, "--type", "FIFO")
        create(b, "any", 2, "--type", "NORMAL", "--type", "FIFO")
        wait_until(lambda: "a broker joined" in a.log.read_text())
        for topic, expected in (
            ("fifo", [pb.FIFO]),
            ("any", [pb.NORMAL, pb.FIFO, pb.DELAY, pb.TRANSACTION]),
        ):
            wait_until(lambda topic=topic: routes(a.grpc_port, topic) == {"b": (b.grpc_port, 2)})
            wait_until(
                lambda topic=topic, expected=expected: (
                    [list(each.accept_message_types) for each in asked_route(a, topic).message_queues]
                    == [expected] * 2
                )
            )
