"""Plain gRPC calls to a gateway, without a RocketMQ client library between: what is sent is what the test says."""

from __future__ import annotations

from typing import Any

import grpc

from lakebroker_pb.apache.rocketmq.v2 import admin_pb2
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as own_admin_pb2
from lakebroker_testing.messages import MessagingCalls

SERVICE = rpc.DESCRIPTOR.services_by_name["MessagingService"]
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"]
OPTIONS = {"minInvisibleTimeMillsForRecv": "200", "grpcClientConsumerMinLongPollingTimeoutMillis": "200"}
"""Of a gateway whose redeliveries and empty receives a test does not want to wait for."""
LEASE_MS = 600_000
"""How long a message that was received is held, where nothing else is said: longer than a test takes on a busy machine."""
DEADLINE_S = 300.0
"""Ends a call that hangs. A receive ends before its deadline, however long it may wait."""


class Client(MessagingCalls):
    """Calls of MessagingService and of the public Admin by name; `client_id=None` leaves the metadata out."""

    def __init__(self, address: str, client_id: str | None = "tester") -> None:
        self.channel = grpc.insecure_channel(address)
        self.metadata = (("x-mq-client-id", client_id),) if client_id is not None else ()

    def call(self, method: str, request: Any, timeout: float | None = DEADLINE_S) -> Any:
        """Raises grpc.RpcError."""
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

    def receive(self, topic: str, group: str, **asked: Any) -> tuple[int, list[pb.Message]]:
        """Status code and messages, which are held for `LEASE_MS` unless `invisible_ms` says otherwise; see `receive_request`."""
        return super().receive(topic, group, **{"invisible_ms": LEASE_MS, **asked})

    def admin(self, method: str, request: Any, timeout: float | None = DEADLINE_S) -> Any:
        """A call of the public Admin service. Raises grpc.RpcError."""
        described = ADMIN.methods_by_name[method]
        invoke = self.channel.unary_unary(
            f"/{ADMIN.full_name}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(admin_pb2, described.output_type.name).FromString,
        )
        return invoke(request, timeout=timeout, metadata=self.metadata)

    def erase(self, topic: str = "", **asked: Any) -> own_admin_pb2.EraseResponse:
        """Erases messages; `asked` are fields of an EraseRequest. Raises grpc.RpcError."""
        invoke = self.channel.unary_unary(
            "/lakebroker.admin.v1.AdminService/Erase",
            request_serializer=own_admin_pb2.EraseRequest.SerializeToString,
            response_deserializer=own_admin_pb2.EraseResponse.FromString,
        )
        request = own_admin_pb2.EraseRequest(topic=topic, **asked)
        answer: own_admin_pb2.EraseResponse = invoke(request, timeout=DEADLINE_S)
        return answer

    def close(self) -> None:
        """Closes the connection."""
        self.channel.close()
