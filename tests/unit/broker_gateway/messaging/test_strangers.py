"""Shares of what is limited, and clients under another's id: a stranger takes no place of others and ends nobody's stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import pytest
from structlog.testing import capture_logs

from broker_gateway.api.grpc.settings import KeptSettings
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.messaging import clients as clients_module
from broker_gateway.messaging.admission import Admission, Bulkhead
from broker_gateway.messaging.clients import ALIVE_MS, ClientRegistry
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.runtime.fair_queue import FairQueue
from broker_gateway.runtime.reply import Reply
from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.messages import receive_request

OWN, STRANGER, THIRD = "10.0.0.1:1000", "10.0.0.66:6666", "10.0.0.3:3"


def options(**given: str) -> GatewayConfig:
    return load_config(None, given, {})[0]


def fill(bulkhead: Bulkhead, peer: str) -> list[Reply[int]]:
    """As many calls as one peer gets."""
    taken: list[Reply[int]] = []
    with contextlib.suppress(ServiceError):
        while True:
            bulkhead.check(peer)
            taken.append(Reply(None, bulkhead, peer))
    return taken


def test_one_address_does_not_take_a_lane_alone() -> None:
    bulkhead = Admission(options(ackThreadPoolQueueCapacity="100"), Tick()).ack
    taken = fill(bulkhead, STRANGER)
    assert len(taken) == 75
    with pytest.raises(
        ServiceError,
        match=r"75 ack calls .*\(ackThreadPoolQueueCapacity=100\), 25 .*10\.0\.0\.66.*lakeMaxSharePerAddress=25",
    ):
        bulkhead.check("10.0.0.66:7")
    others = fill(bulkhead, OWN)
    assert len(others) == 25
    for reply in [*taken, *others]:
        reply.set(1)
    assert bulkhead.under_way == 0
    assert not bulkhead._shares
    assert len(fill(bulkhead, OWN)) == 75


def test_shares_can_be_left_out() -> None:
    bulkhead = Admission(options(ackThreadPoolQueueCapacity="100", lakeMaxSharePerAddress="100"), Tick()).ack
    assert len(fill(bulkhead, STRANGER)) == 100


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


def test_addresses_take_turns_in_a_line() -> None:
    line: FairQueue[int] = FairQueue()
    for number in range(5):
        line.append("hostile", number)
    line.append("honest", 10)
    assert (len(line), list(line)) == (6, [0, 1, 2, 3, 4, 10])
    assert [line.pop(), line.pop()] == [0, 10]
    line.append("honest", 11)
    assert [line.pop() for _ in range(len(line))] == [1, 11, 2, 3, 4]
    with pytest.raises(KeyError):
        line.pop()


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


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    clock = ManualClock()
    with clock.in_place():
        yield clock


def invent(clients: ClientRegistry, peers: list[str]) -> int:
    """How many clients with new ids are taken from peers, one each in turn."""
    before = len(clients)
    with contextlib.suppress(ServiceError):
        for number in range(1000):
            clients.seen(f"invented-{before}-{number}", peers[number % len(peers)])
    return len(clients) - before


def test_who_lives_is_not_forgotten_for_invented_clients(clock: ManualClock) -> None:
    clients = ClientRegistry(100, 25)
    first = clients.seen("consumer", OWN)
    first.commands = asyncio.Queue()
    clock.move(ALIVE_MS * 1_000_000)
    with capture_logs() as logs:
        assert invent(clients, [STRANGER]) == 49
    assert [each["limit"] for each in logs] == ["lakeMaxClients=100"]
    with capture_logs() as logs, pytest.raises(ServiceError, match=r"its share of lakeMaxClients=100"):
        clients.seen("one-more", STRANGER)
    assert not logs, "it was told when the first was refused"
    assert clients.own("consumer", OWN) is first
    assert first.commands.empty()
    invent(clients, [f"10.0.1.{number}:1" for number in range(200)])
    with pytest.raises(ServiceError, match="100 clients are known and alive"):
        clients.seen("one-more", "10.0.2.1:1")
    assert len(clients) == 100
    assert clients.own("consumer", OWN) is first
    clock.move(ALIVE_MS * 1_000_000)
    clients.seen("new", THIRD)
    assert len(clients) == 100, "one that is not alive gave way"
    assert clients.own("consumer", OWN) is first


def test_a_client_of_the_same_id_elsewhere_is_another_one(clock: ManualClock) -> None:
    clients = ClientRegistry(100)
    own, other = clients.seen("c", OWN), clients.seen("c", STRANGER)
    assert own is not other
    assert clients.known("c", THIRD) is not None, "settings of the id are found from anywhere"
    clients.forget(other)
    assert clients.own("c", OWN) is own
    assert clients.alive("c")
    clients.forget(own)
    assert not clients.alive("c")
    assert len(clients) == 0
    assert not clients._shares


def settings(topics: int) -> pb.Settings:
    subscription = pb.Subscription(group=pb.Resource(name="g"))
    subscription.subscriptions.extend(
        [pb.SubscriptionEntry(topic=pb.Resource(name=f"t{number:09}")) for number in range(topics)]
    )
    found = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
    found.user_agent.hostname = "x" * 100_000
    found.request_timeout.FromSeconds(3)
    return found


def kept(count: int) -> KeptSettings:
    return KeptSettings(settings(count))


def test_settings_are_bounded_by_their_bytes_and_shared_out(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients_module, "SETTINGS_BYTES", 100_000)
    clients = ClientRegistry(1000, 25)
    first = clients.seen("c", OWN)
    clients.keep(first, kept(100))
    assert (first.group, first.request_timeout_ms) == ("g", 3000)
    assert isinstance(first.settings, KeptSettings)
    assert len(first.settings.subscriptions) == 100
    assert not first.settings.parsed().HasField("user_agent"), "what nobody needs is not kept"
    hostile = [clients.seen(f"hostile-{number}", STRANGER) for number in range(100)]
    with contextlib.suppress(ServiceError):
        for session in hostile:
            clients.keep(session, kept(200))
    assert 10 < sum(session.settings is not None for session in hostile) < 30
    with pytest.raises(ServiceError, match="settings of all clients have"):
        clients.keep(hostile[-1], kept(200))
    for _ in range(3):
        clients.keep(first, kept(200))  # again: in place of what there was
    clients.keep(clients.seen("d", THIRD), kept(200))
    for session in list(clients.sessions()):
        clients.forget(session)
    assert clients._settings_bytes == 0
    assert not clients._settings_shares


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


def test_who_has_its_share_is_logged_once() -> None:
    bulkhead = Admission(options(pullThreadPoolQueueCapacity="100", lakeMaxWaitingReceives="40"), Tick()).pull
    with capture_logs() as logs:
        fill(bulkhead, STRANGER)
        with pytest.raises(
            ServiceError, match=r"30 pull calls .*lakeMaxWaitingReceives=40.*10 of the second"
        ):
            bulkhead.check(STRANGER)
    (said,) = logs
    assert (said["log_level"], said["address"], said["limit"]) == (
        "warning",
        "10.0.0.66",
        "lakeMaxWaitingReceives=40",
    )
