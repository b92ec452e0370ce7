"""The gRPC port of a gateway without options takes TLS and plaintext."""

from __future__ import annotations

from pathlib import Path

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.prestarted import run
from tests.support.peers.relay import Relay
from tests.support.waiting import LIMIT_S

METHOD = "/apache.rocketmq.v2.MessagingService/QueryRoute"


def test_clients_with_and_without_tls_are_served(tmp_path: Path) -> None:
    with Gateway(tmp_path) as gateway:
        certificate = (tmp_path / "store" / "config" / "trial-certificate.pem").read_bytes()
        credentials = grpc.ssl_channel_credentials(certificate)
        for channel in (
            grpc.secure_channel(gateway.address, credentials),
            grpc.insecure_channel(gateway.address),
        ):
            with channel:
                ask = channel.unary_unary(
                    METHOD, rpc.QueryRouteRequest.SerializeToString, rpc.QueryRouteResponse.FromString
                )
                answer = ask(
                    rpc.QueryRouteRequest(topic=pb.Resource(name="%")),
                    metadata=[("x-mq-client-id", "tester")],
                    timeout=LIMIT_S,
                )
                assert answer.status.code in (pb.ILLEGAL_TOPIC, pb.TOPIC_NOT_FOUND, pb.OK)
        gateway.terminate()
        assert "exception" not in gateway.log.read_text()


def test_commands_speak_tls_where_an_authority_is_given(tmp_path: Path) -> None:
    with (
        Gateway(tmp_path, grpcBindAddress="127.0.0.2") as gateway,
        Relay(f"127.0.0.2:{gateway.grpc_port}") as line,
    ):
        ca = ["--tls-ca", str(tmp_path / "store" / "config" / "trial-certificate.pem")]
        made = run("topic", "create", "orders-of-today", "--gateway", line.address, *ca)
        assert made.returncode == 0, made.stderr
        assert "orders-of-today" in made.stdout
        assert b"orders-of-today" not in line.seen
        wrong = run("topic", "list", "--gateway", f"127.0.0.2:{gateway.grpc_port}", *ca)
        missing = run("topic", "list", "--gateway", line.address, "--tls-ca", str(tmp_path / "missing"))
    assert (wrong.returncode, missing.returncode) == (1, 1)
    assert f"127.0.0.2:{gateway.grpc_port} has a certificate for other names" in wrong.stderr
    assert f"tlsCa {tmp_path / 'missing'} cannot be read" in missing.stderr
