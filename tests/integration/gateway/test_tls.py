"""The gRPC port of a gateway without options takes TLS and plaintext."""

from __future__ import annotations

from pathlib import Path

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import Gateway

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
                    timeout=30,
                )
                assert answer.status.code in (pb.ILLEGAL_TOPIC, pb.TOPIC_NOT_FOUND, pb.OK)
        gateway.terminate()
        assert "exception" not in gateway.log.read_text()
