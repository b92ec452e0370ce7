"""A gateway process for the tests of this folder, and plain gRPC calls to it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.gateway import Gateway

SERVICE = rpc.DESCRIPTOR.services_by_name["MessagingService"]
OPTIONS = {"minInvisibleTimeMillsForRecv": "200", "grpcClientConsumerMinLongPollingTimeoutMillis": "200"}


class Client:
    """Calls of MessagingService by name; `client_id=None` leaves the metadata out."""

    def __init__(self, address: str, client_id: str | None = "tester") -> None:
        self.channel = grpc.insecure_channel(address)
        self.metadata = (("x-mq-client-id", client_id),) if client_id is not None else ()

    def call(self, method: str, request: Any, timeout: float = 10.0) -> Any:
        described = SERVICE.methods_by_name[method]
        response = getattr(rpc, described.output_type.name)
        make = self.channel.unary_stream if described.server_streaming else self.channel.unary_unary
        invoke = make(
            f"/{SERVICE.full_name}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        answer = invoke(request, timeout=timeout, metadata=self.metadata)
        return list(answer) if described.server_streaming else answer

    def send(self, topic: str, *bodies: bytes, **system: Any) -> Any:
        return self.call(
            "SendMessage",
            rpc.SendMessageRequest(messages=[message(topic, body, **system) for body in bodies]),
        )

    def receive(
        self,
        topic: str,
        group: str,
        *,
        batch: int = 32,
        invisible_ms: int = 10_000,
        wait_ms: int = 200,
        **extra: Any,
    ) -> tuple[int, list[pb.Message]]:
        """Status code and messages."""
        request = rpc.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
            filter_expression=extra.pop("filter", pb.FilterExpression(type=pb.TAG, expression="*")),
            batch_size=batch,
            **extra,
        )
        if "auto_renew" not in extra:
            request.invisible_duration.FromMilliseconds(invisible_ms)
        request.long_polling_timeout.FromMilliseconds(wait_ms)
        answers = self.call("ReceiveMessage", request)
        assert answers[0].WhichOneof("content") == "status"
        return answers[0].status.code, [a.message for a in answers if a.WhichOneof("content") == "message"]

    def ack(self, topic: str, group: str, *messages: pb.Message) -> Any:
        return self.call(
            "AckMessage",
            rpc.AckMessageRequest(
                group=pb.Resource(name=group),
                topic=pb.Resource(name=topic),
                entries=[
                    rpc.AckMessageEntry(
                        message_id=m.system_properties.message_id,
                        receipt_handle=m.system_properties.receipt_handle,
                    )
                    for m in messages
                ],
            ),
        )


def message(topic: str, body: bytes, properties: dict[str, str] | None = None, **system: Any) -> pb.Message:
    system.setdefault("message_id", uuid.uuid4().hex.upper())
    system.setdefault("message_type", pb.NORMAL)
    return pb.Message(
        topic=pb.Resource(name=topic),
        user_properties=properties or {},
        system_properties=pb.SystemProperties(**system),
        body=body,
    )


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder: Path = tmp_path_factory.mktemp("gateway")
    with Gateway(folder, **OPTIONS) as process:
        yield process
        assert process.process is not None
        assert process.process.poll() is None, "the gateway died during the tests"


@pytest.fixture
def own_logs() -> Iterator[None]:
    """Logging may be configured in this process; later tests log as before."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    client = Client(gateway.address)
    yield client
    client.channel.close()


@pytest.fixture
def name() -> str:
    """A topic or group nobody used before."""
    return f"t-{uuid.uuid4().hex[:12]}"
