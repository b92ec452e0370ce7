"""A stranger's calls, also under another's id: they take no place of others and end nobody's stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import receive_request

OWN, STRANGER = "10.0.0.1:1000", "10.0.0.66:6666"


def test_waiting_receives_are_shared_out() -> None:
    with InProcessBroker(lakeMaxWaitingReceives="40") as broker:
        broker.create_topic("t")
        broker.create_group("g")
        request = receive_request("t", "g", wait_ms=60_000)
        hostile = [broker.begin("ReceiveMessage", request, peer=STRANGER) for _ in range(60)]
        assert sum(not call.done for call in hostile) == 30
        honest = broker.begin("ReceiveMessage", request, peer=OWN)
        assert not honest.done, "it waits"
        assert {each.response[0].status.code for each in hostile if each.done} == {pb.TOO_MANY_REQUESTS}


def test_a_drain_of_one_address_does_not_keep_others_waiting() -> None:
    """Receives that a tick has no room for look in turns of their addresses."""
    with InProcessBroker() as broker:
        broker.create_topic("t")
        for group in ("hostile", "honest"):
            broker.create_group(group)
        for _ in range(64):
            broker.send("t", b"x" * 60_000)
        order: list[str] = []

        async def together() -> None:
            service = broker.broker.messaging
            for peer, group in [(STRANGER, "hostile")] * 20 + [(OWN, "honest")]:
                reply = service.ReceiveMessage(receive_request("t", group, batch=1, wait_ms=0), context(peer))
                reply.when_set(lambda _, group=group: order.append(group))

        broker.run(together())
        broker.settle()
        assert len(order) == 21
        assert order.index("honest") <= 3


def context(peer: str) -> CallContext:
    return CallContext({"x-mq-client-id": "victim"}, peer, None, ("127.0.0.1", 8081))


SETTINGS = rpc.TelemetryCommand(
    settings=pb.Settings(
        client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=pb.Resource(name="g"))
    )
)


async def _commands(ended: asyncio.Event) -> AsyncIterator[rpc.TelemetryCommand]:
    yield SETTINGS
    await ended.wait()


async def connected(
    broker: InProcessBroker, peer: str, ended: asyncio.Event
) -> AsyncIterator[rpc.TelemetryCommand]:
    """A telemetry stream whose settings were answered."""
    stream = broker.broker.messaging.Telemetry(_commands(ended), context(peer))
    answer = await anext(stream)
    assert answer.status.code == pb.OK
    return stream


def test_a_stranger_with_anothers_id_ends_nothing_of_it() -> None:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.create_group("g")
        broker.send("t", b"one")

        async def connect() -> tuple[AsyncIterator[rpc.TelemetryCommand], asyncio.Event]:
            ended = asyncio.Event()
            return await connected(broker, OWN, ended), ended

        stream, ended = broker.run(connect())
        request = receive_request("t", "g", auto_renew=True)
        taken = broker.begin("ReceiveMessage", request, client_id="victim", peer=OWN)
        assert len(taken.messages) == 1
        service = broker.broker.messaging

        async def attack() -> int:
            ended = asyncio.Event()
            stream = await connected(broker, STRANGER, ended)
            termination = rpc.NotifyClientTerminationRequest(group=pb.Resource(name="g"))
            answer = await service.NotifyClientTermination(termination, context(STRANGER))
            ended.set()
            del stream
            return answer.status.code

        assert broker.run(attack()) == pb.OK
        session = broker.broker.clients.own("victim", OWN)
        assert session is not None
        assert session.commands is not None
        assert session.commands.empty(), "its stream goes on"
        broker.advance(200)
        assert broker.receive("t", "g")[1] == [], "what it holds is renewed still"

        async def leave() -> None:
            ended.set()
            assert [command async for command in stream] == []

        broker.run(leave())


def test_a_stranger_with_the_id_of_one_that_crashed_keeps_nothing_from_others() -> None:
    """What a consumer held is due when that consumer, at its address, shows no sign of life any more."""
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.create_group("g")
        broker.send("t", b"one")

        async def connect(peer: str) -> tuple[AsyncIterator[rpc.TelemetryCommand], asyncio.Event]:
            ended = asyncio.Event()
            return await connected(broker, peer, ended), ended

        own, own_ended = broker.run(connect(OWN))
        request = receive_request("t", "g", auto_renew=True)
        assert len(broker.begin("ReceiveMessage", request, client_id="victim", peer=OWN).messages) == 1

        async def leave(stream: AsyncIterator[rpc.TelemetryCommand], ended: asyncio.Event) -> None:
            ended.set()
            assert [command async for command in stream] == []

        stranger, stranger_ended = broker.run(connect(STRANGER))
        broker.run(leave(own, own_ended))
        broker.advance(200)
        assert [each.body for each in broker.receive("t", "g")[1]] == [b"one"]
        broker.run(leave(stranger, stranger_ended))
