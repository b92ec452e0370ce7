"""What the other brokers of a host answer to what one of them was told by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from broker_gateway.metadata.peers import Peer
from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as api
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.broker import InProcessBroker

_LOCAL = CallContext({}, "127.0.0.1:5", None, ("127.0.0.1", 8081))
_OF_A_PEER = CallContext({"x-lakebroker-told": "1"}, "127.0.0.1:5", None, ("127.0.0.1", 8081))
_PUT = pb.PutTopicRequest(topic=pb.Topic(name="t", queues=4))


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


def put_beside(broker: InProcessBroker, code: grpc.StatusCode, text: str) -> RpcError:
    """What is said of a topic that the peer B refuses with a status."""

    async def put() -> RpcError:
        async def refuse(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            await context.abort(code, text)

        server = grpc.aio.server()
        methods = {"PutTopic": grpc.unary_unary_rpc_method_handler(refuse)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("lakebroker.admin.v1.AdminService", methods),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        broker.broker.peers.all = (Peer("B", port),)
        try:
            with pytest.raises(RpcError) as refused:
                await broker.broker.admin.PutTopic(_PUT, _LOCAL)
        finally:
            await server.stop(None)
        return refused.value

    return asyncio.run(put())  # a real loop: the peer is a real server


def test_what_a_peer_refuses_is_passed_on(broker: InProcessBroker) -> None:
    refused = put_beside(broker, grpc.StatusCode.INVALID_ARGUMENT, "t has 8 queues")
    assert (refused.code, refused.message) == ("INVALID_ARGUMENT", "done here, refused by B: t has 8 queues")


def test_a_peer_that_cannot_be_asked_is_tried_again(broker: InProcessBroker) -> None:
    refused = put_beside(broker, grpc.StatusCode.UNAVAILABLE, "busy")
    assert (refused.code, refused.message) == ("UNAVAILABLE", "done here, not at B (busy); try again")


def test_what_is_done_to_a_group_is_done_at_the_peers_too(broker: InProcessBroker) -> None:
    broker.create_topic("t")
    broker.create_group("g")
    answers = [
        public.ResetGroupOffsetResponse(status=api.Status(code=api.OK)),
        public.ResetGroupOffsetResponse(status=api.Status(code=api.TOPIC_NOT_FOUND, message="no t")),
    ]
    asked: list[public.ResetGroupOffsetRequest] = []
    request = public.ResetGroupOffsetRequest(
        topic=api.Resource(name="t"), group=api.Resource(name="g"), reset_timestamp=Timestamp(seconds=5)
    )

    async def reset() -> list[api.Status]:
        async def answer(told: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            asked.append(public.ResetGroupOffsetRequest.FromString(told))
            return answers[len(asked) - 1].SerializeToString()

        server = grpc.aio.server()
        methods = {"ResetGroupOffset": grpc.unary_unary_rpc_method_handler(answer)}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("apache.rocketmq.v2.Admin", methods),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        broker.broker.peers.all = (Peer("B", port),)
        reset = broker.broker.public_admin.ResetGroupOffset
        try:
            return [(await reset(request, each)).status for each in (_LOCAL, _LOCAL, _OF_A_PEER)]
        finally:
            await server.stop(None)

    first, second, told = asyncio.run(reset())
    assert first.code == told.code == api.OK
    assert (second.code, second.message) == (api.TOPIC_NOT_FOUND, "done here, refused by B: no t")
    assert asked == [request, request], "what a peer asks for is done here alone"
