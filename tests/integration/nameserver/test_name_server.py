"""The name server: KV table, options, limits, and the process."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from broker_gateway.config.broker_options import default_ip
from broker_gateway.nameserver.config import load_config
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.route import TopicRouteData
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.frame import encode
from lakebroker_testing import prestarted
from lakebroker_testing.gateway import NameServer as NameServerProcess
from tests.support.brokers.in_process_name_server import BODY, Broker, name_server, run, running
from tests.support.waiting import LIMIT_S


def test_kv_table_survives(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:
            for number in range(20):
                answer = await broker.ask(
                    RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key=f"t{number}", value="b:4"
                )
                assert answer.code == 0
            assert (await broker.ask(RequestCode.PUT_KV_CONFIG, key="k", value="v")).remark == (
                "namespace or key is null"
            )
            fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "t0"}
            assert (await broker.ask(RequestCode.DELETE_KV_CONFIG, **fields)).code == 0
        async with name_server(tmp_path, orderMessageEnable="true") as broker:
            answer = await broker.ask(RequestCode.GET_KV_CONFIG, **fields)
            assert (answer.code, answer.remark) == (
                ResponseCode.QUERY_NOT_FOUND,
                "No config item, Namespace: ORDER_TOPIC_CONFIG Key: t0",
            )
            answer = await broker.register(
                RegisterBrokerBody(
                    topic_config_table={name: TopicConfig(name) for name in ("t1", "t2")}
                ).encode(compress=True)
            )
            assert KVTable.decode(answer.body).table == {f"t{n}": "b:4" for n in range(1, 20)}
            assert TopicRouteData.decode((await broker.route("t1")).body).order_topic_conf == "b:4"

    run(test)


def test_a_file_that_cannot_be_written_is_an_answer_and_changes_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path, kvConfigPath=str(tmp_path / "folder" / "kv.json")) as broker:
            (tmp_path / "folder").write_text("a file where the folder should be")
            fields = {"namespace": "n", "key": "k"}
            answer = await broker.ask(RequestCode.PUT_KV_CONFIG, value="v", **fields)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "cannot be written" in (answer.remark or "")
            assert (
                await broker.ask(RequestCode.GET_KV_CONFIG, **fields)
            ).code == ResponseCode.QUERY_NOT_FOUND
            (tmp_path / "folder").unlink()
            assert (await broker.ask(RequestCode.PUT_KV_CONFIG, value="v", **fields)).code == 0
            assert (await broker.ask(RequestCode.GET_KV_CONFIG, **fields)).ext_fields == {"value": "v"}

    run(test)


def test_options_change_while_running_and_after(tmp_path: Path) -> None:
    async def test() -> None:
        async with name_server(tmp_path) as broker:

            async def change(text: str) -> Command:
                return await broker.ask(RequestCode.UPDATE_NAMESRV_CONFIG, text.encode())

            assert (await broker.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).code == 0
            assert (await change("enableAllTopicList=false\nenableTopicList=false\n")).code == 0
            for code in (
                RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
                RequestCode.GET_TOPICS_BY_CLUSTER,
                RequestCode.GET_UNIT_TOPIC_LIST,
            ):
                assert (await broker.ask(code, cluster="c")).remark == "disable"
            answer = await change("waitSecondsForService=soon")
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert "option waitSecondsForService=soon" in (answer.remark or "")
            assert "no key=value" in ((await change("enableTopicList")).remark or "")
            for name in ("kvConfigPath", "rocketmqHome", "lakeRemoteAdmin"):
                answer = await change(f"enableTopicList=true\n{name}=x")
                assert (answer.code, answer.remark) == (
                    ResponseCode.NO_PERMISSION,
                    "Can not update config in black list.",
                )
            shown = (await broker.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
            assert "enableTopicList=false\n" in shown
        path = tmp_path / "namesrv.properties"
        config, warnings = load_config(path, {}, {})
        assert warnings == []
        assert not config.namesrv.enable_all_topic_list

    run(test)


def test_routes_wait_for_service(tmp_path: Path) -> None:
    async def test() -> None:
        options = {"needWaitForService": "true", "waitSecondsForService": "3600"}
        async with running(tmp_path, **options) as (server, broker):
            await broker.register(BODY.encode(compress=False))
            answer = await broker.route()
            assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
            server.state.started_at -= 3_600_000
            assert (await broker.route()).code == 0

    run(test)


def test_changes_are_taken_from_this_machine_only(tmp_path: Path) -> None:
    own = default_ip()
    if own == "127.0.0.1":
        pytest.skip("needs an interface beside loopback")

    async def test() -> None:
        for allowed in ("false", "true"):
            async with name_server(tmp_path, bindAddress="0.0.0.0", lakeRemoteAdmin=allowed) as local:
                remote = Broker(f"{own}:{local.address.rpartition(':')[2]}")
                for code, fields in (
                    (RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}),
                    (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b"}),
                    (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "t"}),
                    (RequestCode.GET_NAMESRV_CONFIG, {}),
                    (RequestCode.UPDATE_NAMESRV_CONFIG, {}),
                ):
                    answer = await remote.ask(code, **fields)
                    assert answer.code == (0 if allowed == "true" else ResponseCode.NO_PERMISSION)
                    assert (await local.ask(code, **fields)).code == 0
                assert (await remote.register(BODY.encode(compress=True))).code == 0
                assert (await remote.route()).code == 0
                await remote.client.close()

    run(test)


# the process


def test_options_changed_in_the_file_of_c_survive_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.properties"
    file.write_text(
        f"listenPort=0\nbindAddress=127.0.0.1\nkvConfigPath={tmp_path / 'kv.json'}\nenableTopicList=true\n"
    )

    async def ask(port: int, code: RequestCode, body: bytes = b"") -> Command:
        broker = Broker(f"127.0.0.1:{port}")
        try:
            return await broker.ask(code, body)
        finally:
            await broker.client.close()

    for change in (b"enableTopicList=false\n", b"waitSecondsForService=7\n"):
        with NameServerProcess(tmp_path / "run", config_file=file) as process:
            assert asyncio.run(ask(process.port, RequestCode.UPDATE_NAMESRV_CONFIG, change)).code == 0
            assert process.terminate() == 0
    with NameServerProcess(tmp_path / "run", config_file=file) as process:
        shown = asyncio.run(ask(process.port, RequestCode.GET_NAMESRV_CONFIG)).body.decode().splitlines()
        assert {"enableTopicList=false", "waitSecondsForService=7", f"configStorePath={file}"} <= set(shown)
        assert process.terminate() == 0


def test_start_stop_and_start_again(tmp_path: Path) -> None:
    async def put(address: str) -> None:
        broker = Broker(address)
        answer = await broker.ask(RequestCode.PUT_KV_CONFIG, namespace="n", key="k", value="v")
        assert answer.code == 0
        await broker.client.close()

    async def get(address: str) -> None:
        broker = Broker(address)
        assert (await broker.ask(RequestCode.GET_KV_CONFIG, namespace="n", key="k")).ext_fields == {
            "value": "v"
        }
        await broker.client.close()

    with NameServerProcess(tmp_path) as process:
        boot = (tmp_path / "namesrv.out").read_text()
        assert boot == f"The Name Server boot success. serializeType=JSON, address 127.0.0.1:{process.port}\n"
        asyncio.run(put(process.address))
        assert process.process is not None
        process.process.send_signal(signal.SIGKILL)
        process.process.wait()
        process.start()
        asyncio.run(get(process.address))
        assert process.terminate() == 0


def test_exit_codes(tmp_path: Path) -> None:
    broken = tmp_path / "kvConfig.json"
    broken.write_text("{")
    paths = ("--set", f"kvConfigPath={tmp_path / 'none'}", "--set", "bindAddress=127.0.0.1")
    with NameServerProcess(tmp_path / "running") as process:
        for arguments, status, named in (
            (("--set", "listenPort=70000"), 253, "option listenPort=70000"),
            (("--set", "listenPort"), 253, "write it as name=value"),
            (("-c", str(tmp_path / "missing.properties")), 253, "missing.properties cannot be read"),
            (("--set", f"kvConfigPath={broken}", "--set", "listenPort=0"), 254, "cannot be used"),
            ((*paths, "--set", f"listenPort={process.port}"), 255, "choose another listenPort"),
            (
                (*paths, "--set", "listenPort=0", "--set", "bindAddress=203.0.113.1"),
                255,
                "bindAddress=203.0.113.1 is not an address of this host",
            ),
        ):
            done = prestarted.run("namesrv", *arguments)
            assert done.returncode == status, done.stderr
            assert named in done.stderr
            assert "Traceback" not in done.stderr


def test_print_options(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text("listenPort=5\norderMessageEnable=true\nlistenPrt=6\n")
    done = prestarted.run("namesrv", "-c", str(path), "-p")
    assert done.returncode == 0
    assert "option listenPrt is unknown and has no effect; did you mean listenPort?" in done.stderr
    lines = done.stdout.splitlines()
    assert {"listenPort=5", "orderMessageEnable=true", f"configStorePath={path}"} <= set(lines)
    assert "scanNotActiveBrokerInterval=5000" in lines


def test_connections_of_one_address_leave_room_to_others(tmp_path: Path) -> None:
    """Those that have asked something keep their places; the address gets no more."""

    async def test() -> None:
        async with name_server(tmp_path, lakeMaxConnections="100") as broker:
            host, _, port = broker.address.rpartition(":")
            asked = encode(Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}))
            open_ones, served = list[asyncio.StreamWriter](), 0
            for _ in range(170):
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.66", 0))
                open_ones.append(writer)
                writer.write(asked)
                with suppress(ConnectionError):
                    served += bool(await asyncio.wait_for(reader.read(4), LIMIT_S))
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=("127.0.0.3", 0))
            writer.write(asked)
            answer = b""
            with suppress(ConnectionError):
                answer = await asyncio.wait_for(reader.read(4), LIMIT_S)
            assert (served, bool(answer)) == ((100 + 64) // 2, True), "others find room"
            for each in [*open_ones, writer]:
                each.close()

    run(test)
