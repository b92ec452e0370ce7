"""Processes whose standard error cannot be written: they serve, and stop as ever."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import threading
import time
from pathlib import Path

from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, command

_FULL = ["sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh"]


def ask(port: int, code: int, body: bytes = b"", **fields: str) -> int:
    async def invoke() -> int:
        client = RemotingClient()
        try:
            return (await client.invoke(f"127.0.0.1:{port}", Command(code, fields, body), 10)).code
        finally:
            await client.close()

    return asyncio.run(invoke())


def break_the_protocol(port: int) -> None:
    """What a warning is logged of."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(b"\xff" * 100)
        peer.settimeout(10)
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
    settings = [part for name, value in options.items() for part in ("--set", f"{name}={value}")]
    server = subprocess.Popen(
        command("namesrv", *settings), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    watch = threading.Timer(60, server.kill)
    watch.start()
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        port = int(server.stdout.readline().rpartition(b":")[2])
        server.stderr.close()
        server.stdout.close()
        break_the_protocol(port)
        time.sleep(0.1)
        assert ask(port, RequestCode.GET_BROKER_CLUSTER_INFO) == 0
        server.terminate()
        assert server.wait(20) == 0
    finally:
        watch.cancel()
        server.kill()
        server.wait()
