"""The gateway as a process: start, stop, crash, second start, log service, access, command line, metrics."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.log.v1 import log_pb2
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.prestarted import run
from structured_streaming.errors import SourceError
from structured_streaming.source.access import Access
from structured_streaming.source.remote import BrokerLog
from tests.support.brokers.scraped import metric, scraped, value
from tests.support.waiting import LIMIT_S, wait_until


def test_state_is_as_it_was_after_sigkill(tmp_path: Path) -> None:
    with Gateway(tmp_path, **OPTIONS, lakeJournalSnapshotBytes="65536") as gateway:
        client = Client(gateway.address)
        client.send("kept", *[str(n).encode() for n in range(400)])
        first = [m for _ in range(5) for m in client.receive("kept", "g", invisible_ms=3_600_000)[1]]
        assert len(first) == 160
        assert client.ack("kept", "g", *first[:100]).status.code == pb.OK
        client.channel.close()
        gateway.kill()
        gateway.start()
        client = Client(gateway.address)
        rest = [m for _ in range(10) for m in client.receive("kept", "g", invisible_ms=3_600_000)[1]]
        assert {m.body for m in rest} == {str(n).encode() for n in range(400)} - {m.body for m in first}
        assert client.ack("kept", "g", *first[100:]).status.code == pb.OK, "handles survive a crash"
        assert client.ack("kept", "g", first[0]).status.code == pb.INVALID_RECEIPT_HANDLE
        client.channel.close()
        assert gateway.terminate() == 0
        assert not (gateway.store / "abort").exists()


def test_sigterm_ends_waiting_calls_with_a_status(tmp_path: Path) -> None:
    with Gateway(tmp_path, **OPTIONS) as gateway:
        client = Client(gateway.address)
        assert (gateway.store / "abort").exists()
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.append(client.receive("t", "g", wait_ms=200_000)))
        waiting.start()
        wait_until(lambda: metric(gateway.metrics_port, "lakebroker_calls_under_way", kind="pull") == 1)
        assert gateway.terminate() == 0
        waiting.join(LIMIT_S)
        assert got == [(pb.MESSAGE_NOT_FOUND, [])]
        client.channel.close()


def test_token_is_needed_once_configured(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef-secret\n")
    token.chmod(0o600)
    with Gateway(tmp_path, lakeTokenFile=str(token)) as gateway:
        denied = run("topic", "list", "--gateway", gateway.address)
        assert denied.returncode == 1
        assert "UNAUTHENTICATED" in denied.stderr
        allowed = run("topic", "list", "--gateway", gateway.address, "--token-file", str(token), "--json")
        assert allowed.returncode == 0, allowed.stderr
        assert json.loads(allowed.stdout) == []
        assert "0123456789abcdef" not in gateway.log.read_text()
        with pytest.raises(SourceError, match="UNAUTHENTICATED"):
            BrokerLog(gateway.address, Access("wrong")).describe()


def test_metrics_have_rocketmqs_names(gateway: Gateway, client: Client, name: str) -> None:
    client.send(name, b"counted")
    numbers = scraped(f"http://127.0.0.1:{gateway.metrics_port}/metrics")
    own = {"cluster": "DefaultCluster", "node_id": "broker-a", "topic": name}
    assert value(numbers, "rocketmq_messages_in_total", **own) == 1.0
    assert "rocketmq_storage_size" in {each for each, _ in numbers}


def test_unknown_methods_and_garbage_do_no_harm(gateway: Gateway, client: Client, name: str) -> None:
    unknown = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/Nonsense")
    with pytest.raises(grpc.RpcError) as refused:
        unknown(b"", timeout=LIMIT_S)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    garbage = client.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
    with pytest.raises(grpc.RpcError):
        garbage(b"\xff" * 1000, timeout=LIMIT_S, metadata=[("x-mq-client-id", "c")])
    negative = log_pb2.SplitLogRequest(log_id="x", start_offset=-5, end_offset=-1, max_bytes=-1)
    split = client.channel.unary_unary(
        "/lakebroker.log.v1.LogService/SplitLog", request_serializer=log_pb2.SplitLogRequest.SerializeToString
    )
    with pytest.raises(grpc.RpcError):
        split(negative, timeout=LIMIT_S)
    assert client.send(name, b"still here").status.code == pb.OK


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_health_and_reflection(tmp_path: Path, transport: str) -> None:
    with Gateway(tmp_path, transport=transport) as gateway, grpc.insecure_channel(gateway.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING
        for name in ("", "apache.rocketmq.v2.MessagingService"):
            assert (
                health.Check(health_pb2.HealthCheckRequest(service=name), timeout=LIMIT_S).status == serving
            )
        with pytest.raises(grpc.RpcError, match="none of the gateway's"):
            health.Check(health_pb2.HealthCheckRequest(service="nothing"), timeout=LIMIT_S)
        listed = health.List(health_pb2.HealthListRequest(), timeout=LIMIT_S).statuses
        assert {each.status for each in listed.values()} == {serving}
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)
        assert next(watch).status == serving

        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        symbol = "apache.rocketmq.v2.MessagingService"
        asked = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=symbol),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="no.Such"),
        ]
        services, found, missing = reflection.ServerReflectionInfo(iter(asked), timeout=LIMIT_S)
        assert symbol in [each.name for each in services.list_services_response.service]
        files = [
            descriptor_pb2.FileDescriptorProto.FromString(each)
            for each in found.file_descriptor_response.file_descriptor_proto
        ]
        assert {each for file in files for each in file.dependency} <= {file.name for file in files}
        assert "MessagingService" in [service.name for file in files for service in file.service]
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]

        assert gateway.process is not None
        gateway.process.terminate()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert gateway.process.wait(LIMIT_S) == 0


def test_sends_that_queued_behind_a_slow_append_are_refused_and_later_ones_taken(tmp_path: Path) -> None:
    with Gateway(tmp_path, **OPTIONS, osPageCacheBusyTimeOutMills="1") as gateway:
        client = Client(gateway.address)
        client.send("t", b"first")
        codes = []
        while pb.TOO_MANY_REQUESTS not in codes:
            codes.append(client.send("t", b"x" * (3 << 20)).status.code)
            codes.append(client.send("t", b"behind it").status.code)
        assert {*codes} <= {pb.OK, pb.TOO_MANY_REQUESTS}
        wait_until(lambda: client.send("t", b"later").status.code == pb.OK)
        client.channel.close()
