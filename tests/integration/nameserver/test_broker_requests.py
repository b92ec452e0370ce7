"""Requests of brokers to the name server: registration in every form, heartbeats, and what happens once a broker is silent or gone."""

from __future__ import annotations

import asyncio
import signal
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_gateway.nameserver.broker_requests import is_large
from broker_gateway.nameserver.brokers import MinBrokerIdChange
from broker_gateway.nameserver.lost_brokers import LostBrokers
from broker_gateway.nameserver.route_table import RouteTable
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.route import ClusterInfo, QueueData, TopicRouteData
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode, ResponseCode, Version
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import SendError
from broker_gateway.transport.remoting.connection import Processors
from broker_gateway.transport.remoting.server import RemotingServer
from lakebroker_testing.gateway import NameServer as NameServerProcess
from tests.support.brokers.in_process_name_server import BODY, Broker, name_server, run, running
from tests.support.waiting import LIMIT_S, until


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("labelled", ["true", "false"])
def test_a_body_is_understood_whatever_its_label_says(tmp_path: Path, compress: bool, labelled: str) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            body = BODY.encode(compress=compress)
            check = zlib.crc32(body) & 0x7FFFFFFF
            assert (await broker.register(body, compressed=labelled, bodyCrc32=check)).code == 0
            route = TopicRouteData.decode((await broker.route()).body)
            assert route.queue_datas == (QueueData("b", 4, 8),)
            assert route.broker_datas[0].broker_addrs == {0: "127.0.0.1:1"}

    run(test)


def test_registration_before_3_0_11(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            topics = b",".join(
                b'"%s":{"topicName":"%s","readQueueNums":3,"writeQueueNums":3,"perm":6}' % (name, name)
                for name in (b"orders", b"other")
            )
            body = b'{"topicConfigTable":{%s},"dataVersion":{"counter":1,"timestamp":2}}' % topics
            assert (await broker.register(body, version=Version.V3_0_11 - 1)).code == 0
            assert TopicRouteData.decode((await broker.route()).body).queue_datas == (QueueData("b", 3, 3),)

    run(test)


@pytest.mark.parametrize(
    ("fields", "body", "remark"),
    [
        ({"bodyCrc32": 1}, BODY.encode(compress=True), "crc32 not match"),
        ({"bodyCrc32": "x"}, b"", "bodyCrc32 'x' is no integer of 32 bits"),
        ({}, b"{", "JSON of 1 bytes cannot be read"),
        ({}, b"{}", "no topicConfigSerializeWrapper"),
        ({}, b'{"topicConfigSerializeWrapper":null}', "no topicConfigSerializeWrapper"),
        ({}, b"{" + b"0:1," * 300_000 + b"0:1}", "more than 250000 keys without quotes"),
        ({}, b"x\x9cgarbage", "cannot be unpacked"),
        ({"brokerAddr": "nowhere"}, b"", "address 'nowhere': write it as host:port"),
        ({"brokerName": ""}, b"", "brokerName ''"),
        ({"brokerName": "x" * 256}, b"", "1 to 255 printable"),
        ({"brokerId": "first"}, b"", "brokerId 'first' is no integer"),
        ({"heartbeatTimeoutMillis": 0}, b"", "heartbeatTimeoutMillis 0"),
    ],
)
def test_a_wrong_registration_is_answered_and_changes_nothing(
    tmp_path: Path, fields: dict[str, Any], body: bytes, remark: str
) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            answer = await broker.register(body, **fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert remark in (answer.remark or "")
            info = ClusterInfo.decode((await broker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
            assert info == ClusterInfo({}, {})

    run(test)


def test_a_broker_that_left_while_its_registration_was_read_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = {f"topic-{number}": TopicConfig(f"topic-{number}") for number in range(20_000)}
    body = RegisterBrokerBody(DataVersion(), topics).encode(compress=True)
    assert is_large(body)
    is_read, goes_on = threading.Event(), threading.Event()

    def held(*given: Any, decode: Any = RegisterBrokerBody.decode) -> RegisterBrokerBody:
        is_read.set()
        goes_on.wait(LIMIT_S)
        return decode(*given)

    monkeypatch.setattr(RegisterBrokerBody, "decode", held)

    async def test() -> None:
        async with running(tmp_path) as (server, broker):
            leaving = Broker(broker.address)
            task = asyncio.create_task(leaving.register(body, brokerName="leaving"))
            await until(is_read.is_set)
            await leaving.client.close()
            with pytest.raises(SendError):
                await task
            await until(lambda: server.connections == 0)
            goes_on.set()
            # they are read one by one: the answer to this one says that the other's tick is over
            assert (await broker.register(body, brokerAddr="127.0.0.1:9")).code == 0
            info = ClusterInfo.decode((await broker.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body)
            assert list(info.broker_addr_table) == ["b"]
            topic = list(topics)[-1]
            assert len(TopicRouteData.decode((await broker.route(topic)).body).queue_datas) == 1

    run(test)


@pytest.mark.parametrize(
    ("topics", "large"),
    [(2, False), (20_000, True)],
)
def test_a_small_body_that_unpacks_to_much_is_read_aside(topics: int, large: bool) -> None:
    """Whatever is read on the event loop itself delays everybody."""
    parts = [b"{}", *(b"t%d 1 1 6 SINGLE_TAG" % (number % 10) for number in range(topics)), b"[]"]
    texts = [len(each).to_bytes(4, "big") + each for each in parts]
    texts.insert(1, topics.to_bytes(4, "big"))
    body = zlib.compress(b"".join(texts), 9)
    assert len(body) < 4096
    assert len(RegisterBrokerBody.decode(body, 0).topic_config_table) == min(topics, 10)
    assert is_large(body) == large


def test_large_bodies_where_small_ones_belong(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            await broker.register(BODY.encode(compress=True))
            ids = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0}
            answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, b'{"counter":1}' + b" " * 5000, **ids)
            assert "a data version of 5013 bytes; 4096 are allowed" in (answer.remark or "")
            queues = TopicRouteData((QueueData("b", 3, 3),), ()).encode() + b" " * (1 << 20)
            assert (await broker.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, queues, topic="new")).code == 0
            assert TopicRouteData.decode((await broker.route("new")).body).queue_datas[0].perm == 6

    run(test)


def test_data_version_heartbeat_unregister(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            ids = {
                "brokerName": "b",
                "brokerAddr": "127.0.0.1:1",
                "clusterName": "c",
                "brokerId": 0,
            }
            version = BODY.data_version.encode()
            answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, version, **ids)
            assert (answer.ext_fields, answer.body) == ({"changed": "true"}, b"")
            await broker.register(BODY.encode(compress=True))
            answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, version, **ids)
            assert (answer.ext_fields, answer.body) == ({"changed": "false"}, version)
            answer = await broker.ask(RequestCode.QUERY_DATA_VERSION, DataVersion(0, 5, 8).encode(), **ids)
            assert answer.ext_fields == {"changed": "true"}
            assert (await broker.ask(RequestCode.BROKER_HEARTBEAT, **ids)).code == 0
            assert (
                await broker.ask(RequestCode.BROKER_HEARTBEAT)
            ).remark == "the custom field <clusterName> is null"
            assert (await broker.ask(RequestCode.UNREGISTER_BROKER, **ids)).code == 0
            answer = await broker.route()
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert (answer.remark or "").startswith(
                "No topic route info in name server for the topic: orders"
            )

    run(test)


def test_brokers_hear_of_a_new_least_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # whom a busy machine does not let answer in 0.3 s would not be told
    monkeypatch.setattr("broker_gateway.nameserver.server._NOTIFY_TIMEOUT_S", LIMIT_S)

    async def test() -> None:
        heard: asyncio.Queue[Command] = asyncio.Queue()
        processors = Processors()
        processors.register(
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, lambda _, request: heard.put_nowait(request)
        )
        slave_server = RemotingServer(processors)
        await slave_server.start("127.0.0.1", 0)
        slave_address = f"127.0.0.1:{slave_server.port}"
        async with name_server(tmp_path, notifyMinBrokerIdChanged="true") as slave:
            master = Broker(slave.address)
            body = BODY.encode(compress=True)
            await master.register(body, enableActingMaster="true")
            await slave.register(body, enableActingMaster="true", brokerId=1, brokerAddr=slave_address)
            await master.client.close()
            told = await heard.get()
            assert told.is_one_way
            assert told.ext_fields == {
                "minBrokerId": "1",
                "minBrokerAddr": slave_address,
                "offlineBrokerAddr": "127.0.0.1:1",
            }
            master = Broker(slave.address)
            await master.register(body, enableActingMaster="true")
            assert (await heard.get()).ext_fields == {
                "minBrokerId": "0",
                "minBrokerAddr": "127.0.0.1:1",
                "haBrokerAddr": "127.0.0.1:2",
            }
            await master.client.close()
        await slave_server.stop()

    run(test)


def test_silent_brokers_expire_though_their_connection_is_open(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path, scanNotActiveBrokerInterval="50") as reader:
            broker = Broker(reader.address)
            await broker.register(BODY.encode(compress=True))
            assert (await reader.route()).code == 0
            await broker.register(BODY.encode(compress=True), heartbeatTimeoutMillis=300)

            async def gone() -> bool:
                return (await reader.route()).code == ResponseCode.TOPIC_NOT_EXIST

            await until(gone)
            await broker.client.close()

    run(test)


def test_the_brokers_of_a_connection_that_closes_go_in_turns(tmp_path: Path) -> None:
    """Counted: topics that are gone after each tick of the loop, while others wait for theirs."""
    topics = {f"t{number}": TopicConfig(f"t{number}") for number in range(1000)}
    body = RegisterBrokerBody(DataVersion(), topics).encode(compress=True)

    async def test() -> None:
        async with running(tmp_path) as (server, many):
            for number in range(1, 31):
                answer = await many.register(body, brokerName=f"b{number}", brokerAddr=f"127.0.0.1:{number}")
                assert answer.code == 0
            table = server.state.routes.topics.queues

            def left() -> int:
                return sum(map(len, table.values()))

            before, most = left(), 0
            assert before == 30_000
            await many.client.close()
            while table:
                await asyncio.sleep(0)
                before, most = left(), max(most, before - left())
            assert most <= 2000, f"{most} in one tick"

    run(test)


def test_the_look_for_silent_brokers_goes_on_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    unregister = RouteTable.unregister_one

    def failing(table: RouteTable, cluster: str, address: str) -> MinBrokerIdChange | None:
        if len(failed) < 3:
            failed.append(address)
            raise RuntimeError("tried")
        return unregister(table, cluster, address)

    monkeypatch.setattr(RouteTable, "unregister_one", failing)
    # what unregisters at the end of the connection is not the look
    monkeypatch.setattr(LostBrokers, "connection_closed", lambda *_: None)

    async def test() -> None:
        async with name_server(tmp_path, scanNotActiveBrokerInterval="20") as reader:
            broker = Broker(reader.address)
            await broker.register(BODY.encode(compress=True), heartbeatTimeoutMillis=100)

            async def gone() -> bool:
                return (await reader.route()).code == ResponseCode.TOPIC_NOT_EXIST

            await until(gone)
            assert len(failed) == 3
            await broker.client.close()

    run(test)


def test_brokers_survive_a_pause_of_the_name_server(tmp_path: Path) -> None:
    """Stopped for longer than its brokers may be silent, while their signs of life wait in its sockets.

    The first of them is a registration that gives the broker more time, for those on a busy machine may come late behind the pause.
    """

    async def test(process: NameServerProcess) -> None:
        def silent() -> list[str]:
            return [line for line in process.log.read_text().splitlines() if "a broker is silent" in line]

        broker, other = Broker(process.address), Broker(process.address)
        ids = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0}
        answer = await broker.register(BODY.encode(compress=True), heartbeatTimeoutMillis=4000)
        assert answer.code == 0
        assert process.process is not None
        await broker.ask(RequestCode.BROKER_HEARTBEAT, **ids)
        process.process.send_signal(signal.SIGSTOP)
        try:
            again = broker.register(BODY.encode(compress=True), heartbeatTimeoutMillis=3_600_000)
            beats = [asyncio.create_task(again)]
            beat = Command(RequestCode.BROKER_HEARTBEAT, {name: str(value) for name, value in ids.items()})
            for _ in range(12):
                beats.append(asyncio.create_task(broker.client.invoke(broker.address, beat, LIMIT_S)))
                await asyncio.sleep(0.5)
        finally:
            process.process.send_signal(signal.SIGCONT)
        assert {each.code for each in await asyncio.gather(*beats)} == {0}
        # the end of another one's time proves that brokers were looked at behind the pause
        elsewhere = {"brokerName": "other", "brokerAddr": "127.0.0.1:3"}
        assert (
            await other.register(BODY.encode(compress=True), heartbeatTimeoutMillis=1, **elsewhere)
        ).code == 0
        await until(silent)
        assert ["127.0.0.1:3" in line for line in silent()] == [True]
        assert (await broker.route()).code == 0
        await broker.client.close()
        await other.client.close()

    with NameServerProcess(tmp_path, scanNotActiveBrokerInterval="500") as process:
        asyncio.run(test(process))
        assert "the name server stood still" in process.log.read_text()


def test_requests_that_are_refused_are_told_once_a_minute(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            with capture_logs() as lines:
                for number in range(50):
                    single = RegisterBrokerBody(DataVersion(0, 0, 1), {"t": TopicConfig("t", 1, 1)})
                    body = single.encode(compress=False)
                    assert (await broker.register(body, brokerName=f"b{number}")).code != 0
            assert len(lines) <= 2, lines
            assert "a broker's request is refused" in {each["event"] for each in lines}

    run(test)
