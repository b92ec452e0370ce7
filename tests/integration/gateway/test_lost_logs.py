"""Processes whose standard error cannot be written: they serve, and stop as ever."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway, settings_of
from lakebroker_testing.prestarted import start
from tests.support.rocketmq.requests import invoke
from tests.support.waiting import LIMIT_S

_FULL = ["sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"]


def ask(port: int, code: int, body: bytes = b"", **fields: str) -> int:
    return invoke(f"127.0.0.1:{port}", Command(code, fields, body)).code


def break_the_protocol(port: int) -> None:
    """What a warning is logged of."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(b"\xff" * 100)
        peer.settimeout(LIMIT_S)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""


def test_a_broker_whose_log_is_full_serves_and_stops(tmp_path: Path) -> None:
    with Gateway(tmp_path, wrapper=_FULL, **OPTIONS) as gateway:
        client = Client(gateway.address)
        assert client.send("t", b"x").status.code == pb.OK
        break_the_protocol(gateway.remoting_port)
        assert ask(gateway.remoting_port, RequestCode.UPDATE_BROKER_CONFIG, b"retryMaxTimes=3") == 0
        assert ask(gateway.remoting_port, RequestCode.DELETE_TOPIC_IN_BROKER, topic="t") == 0
        assert client.send("u", b"x").status.code == pb.OK
        client.channel.close()
        assert gateway.terminate() == 0
    assert not (gateway.store / "abort").exists()


def test_a_name_server_whose_log_has_no_reader_serves_and_stops(tmp_path: Path) -> None:
    options = {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "kvConfigPath": str(tmp_path / "kv.json"),
        "configStorePath": str(tmp_path / "namesrv.properties"),
    }
    settings = settings_of(options)
    with contextlib.ExitStack() as pipes:
        (said, output), (log, errors) = (
            [
                pipes.enter_context(open(each, mode))
                for each, mode in zip(os.pipe(), ("rb", "wb"), strict=True)
            ]
            for _ in range(2)
        )
        server = start("namesrv", *settings, stdout=output, stderr=errors)
        output.close()
        errors.close()
        try:
            port = int(said.readline().rpartition(b":")[2])
            said.close()
            log.close()
            break_the_protocol(port)
            assert ask(port, RequestCode.GET_BROKER_CLUSTER_INFO) == 0
            server.terminate()
            assert server.wait(LIMIT_S) == 0
        finally:
            server.kill()
            server.wait()
