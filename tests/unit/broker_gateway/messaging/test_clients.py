"""Clients by their ids and addresses: who lives stays, who is silent is forgotten, and what they say is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_gateway.api.grpc.settings import KeptSettings
from broker_gateway.messaging import clients as clients_module
from broker_gateway.messaging.clients import (
    ALIVE_MS,
    COMMANDS_A_CLIENT,
    IDLE_MS,
    ClientRegistry,
    ClientSession,
)
from broker_gateway.messaging.outcome import ServiceError
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.clock import ManualClock

OWN, STRANGER, THIRD = "10.0.0.1:1000", "10.0.0.66:6666", "10.0.0.3:3"


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
    clients = ClientRegistry(100, 25)
    own, other = clients.seen("c", OWN), clients.seen("c", STRANGER)
    assert own is not other
    assert clients.known("c", THIRD) is not None, "settings of the id are found from anywhere"
    clients.forget(other)
    assert clients.own("c", OWN) is own
    assert clients.alive("c")
    clients.forget(own)
    assert not clients.alive("c")
    assert len(clients) == 0
    for number in range(50):
        clients.seen("c", f"10.0.1.{number}:1")
    assert [invent(clients, [peer]) for peer in (OWN, STRANGER)] == [25, 25], "neither has any of its share"


def settings(topics: int) -> pb.Settings:
    subscription = pb.Subscription(group=pb.Resource(name="g"))
    subscription.subscriptions.extend(
        [pb.SubscriptionEntry(topic=pb.Resource(name=f"t{number:09}")) for number in range(topics)]
    )
    found = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
    found.user_agent.hostname = "x" * 100_000
    found.user_agent.platform = "x" * 100_000
    found.request_timeout.FromSeconds(3)
    return found


def kept(count: int) -> KeptSettings:
    return KeptSettings(settings(count))


def test_settings_are_bounded_by_their_bytes_and_shared_out(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients_module, "SETTINGS_BYTES", 100_000)
    clients = ClientRegistry(1000, 25)
    assert len({settings_kept(clients) for _ in range(5)}) == 1, "those that are forgotten take no room"


def settings_kept(clients: ClientRegistry) -> tuple[int, int]:
    """How many a hostile host has kept, and another one behind it: the first half, and a share. All are forgotten then."""
    first = clients.seen("c", OWN)
    clients.keep(first, kept(100))
    assert (first.group, first.request_timeout_ms) == ("g", 3000)
    assert isinstance(first.settings, KeptSettings)
    assert len(first.settings.subscriptions) == 100
    assert first.settings.hostname == "x" * 255
    assert not first.settings.parsed().user_agent.platform, "what nobody needs is not kept"
    hostile = [clients.seen(f"hostile-{number}", STRANGER) for number in range(100)]
    count = keep_for(clients, hostile)
    assert 10 < count < 30
    with pytest.raises(ServiceError, match="settings of all clients have"):
        clients.keep(hostile[-1], kept(200))
    for _ in range(3):
        clients.keep(first, kept(200))  # again: in place of what there was
    share = keep_for(clients, [clients.seen(f"third-{number}", THIRD) for number in range(100)])
    assert 0 < share < count
    for session in list(clients.sessions()):
        clients.forget(session)
    return count, share


def keep_for(clients: ClientRegistry, sessions: list[ClientSession]) -> int:
    """Of how many sessions settings are kept, until those of one are refused."""
    with contextlib.suppress(ServiceError):
        for session in sessions:
            clients.keep(session, kept(200))
    return sum(session.settings is not None for session in sessions)


def test_who_is_silent_for_long_is_forgotten_unless_its_stream_is_open(clock: ManualClock) -> None:
    clients = ClientRegistry(100)
    silent, listening, heard = (clients.seen(each, OWN) for each in ("silent", "listening", "heard"))
    listening.commands = asyncio.Queue()
    clock.move(IDLE_MS * 1_000_000)
    clients.touch(heard)
    assert clients.expire() == [], "not before its time is over"
    clock.move(1_000_000)
    assert clients.expire() == [silent]
    assert list(clients.sessions()) == [listening, heard]


def test_of_clients_with_one_id_the_one_heard_of_last_is_known_elsewhere(clock: ManualClock) -> None:
    clients = ClientRegistry(100)
    first = clients.seen("c", OWN)
    clock.move(1_000_000)
    second = clients.seen("c", STRANGER)
    assert clients.known("c", THIRD) is second
    clock.move(1_000_000)
    clients.touch(first)
    assert clients.known("c", THIRD) is first
    assert clients.known("c", STRANGER) is second, "who calls is itself"
    assert clients.known("d", OWN) is None


def test_a_client_that_was_forgotten_comes_back_by_a_call_alone(clock: ManualClock) -> None:
    clients = ClientRegistry(100)
    gone = clients.seen("c", OWN)
    clients.forget(gone)
    clients.touch(gone)
    clients.keep(gone, kept(1))
    assert (len(clients), gone.settings, gone.group) == (0, None, "")
    assert clients.seen("c", OWN) is not gone


def test_a_stream_with_no_room_for_a_command_hears_of_its_end() -> None:
    clients = ClientRegistry(100)
    session = clients.seen("c", OWN)
    session.commands = asyncio.Queue()
    for command in range(COMMANDS_A_CLIENT):
        assert session.takes_commands
        session.commands.put_nowait(command)
    assert not session.takes_commands
    clients.end_streams()
    carried = [session.commands.get_nowait() for _ in range(COMMANDS_A_CLIENT + 1)]
    assert carried == [*range(COMMANDS_A_CLIENT), None]
    assert clients.own("c", OWN) is session


def publishing(*topics: str) -> KeptSettings:
    found = pb.Settings(client_type=pb.PRODUCER)
    found.publishing.topics.extend(pb.Resource(name=each) for each in topics)
    return KeptSettings(found)


def test_producers_of_a_topic_that_take_commands_are_found_in_turn() -> None:
    clients = ClientRegistry(1000)
    first, second, away = (clients.seen(each, OWN) for each in ("first", "second", "away"))
    clients.keep(first, publishing("orders", "bills", "orders"))
    clients.keep(second, publishing("orders"))
    clients.keep(away, publishing("orders"))
    assert clients.publisher_of("orders") is None, "none has a stream"
    first.commands, second.commands = asyncio.Queue(), asyncio.Queue()
    found = [clients.publisher_of("orders") for _ in range(6)]
    assert found.count(first) == found.count(second) == 3
    assert found[:2] != [first, first]
    assert clients.publisher_of("bills") is first
    for command in range(COMMANDS_A_CLIENT):
        first.commands.put_nowait(command)
    assert clients.publisher_of("bills") is None, "it does not read"
    assert [clients.publisher_of("orders") for _ in range(2)] == [second, second]
    clients.keep(second, publishing("bills"))
    assert clients.publisher_of("orders") is None
    assert clients.publisher_of("bills") is second
    for each in (first, second, away):
        clients.forget(each)
    assert clients.publisher_of("bills") is None
    assert not clients._publishers, "no caller sees the memory that topics leave behind"


def test_a_namespace_belongs_to_the_name_of_a_published_topic() -> None:
    clients = ClientRegistry(10)
    session = clients.seen("c", OWN)
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.add(name="orders", resource_namespace="eu")
    clients.keep(session, KeptSettings(settings))
    session.commands = asyncio.Queue()
    assert clients.publisher_of("eu%orders") is session
    assert clients.publisher_of("orders") is None


def test_a_namespace_belongs_to_the_names_of_a_group_and_of_what_it_subscribes_to() -> None:
    clients = ClientRegistry(10)
    session = clients.seen("c", OWN)
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.name, settings.subscription.group.resource_namespace = "billing", "eu"
    settings.subscription.subscriptions.add(topic=pb.Resource(name="orders", resource_namespace="eu"))
    clients.keep(session, KeptSettings(settings))
    assert clients.consumer("eu%billing", "c") is session
    assert clients.consumer("billing", "c") is None
    assert session.settings is not None
    assert [each.topic for each in session.settings.subscriptions] == ["eu%orders"]


def test_topics_that_a_producer_names_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "SETTINGS_BYTES", 100_000)
    clients = ClientRegistry(10)
    session = clients.seen("c", OWN)
    clients.keep(session, publishing(*(f"t{number}" for number in range(100))))
    with pytest.raises(ServiceError, match="settings of all clients have"):
        clients.keep(session, publishing(*(f"t{number}" for number in range(500))))
    assert len(session.published) == 100, "those of before are kept"


def test_a_consumer_is_found_by_its_group_and_the_one_with_a_stream_goes_first(clock: ManualClock) -> None:
    clients = ClientRegistry(10)
    listening, other = clients.seen("c", OWN), clients.seen("c", STRANGER)
    assert clients.consumer("g", "c") is None, "it sent no settings"
    clients.keep(listening, kept(1))
    clock.move(1_000_000)
    clients.keep(other, kept(1))
    clients.touch(other)
    assert clients.consumer("g", "c") is other
    listening.commands = asyncio.Queue()
    assert clients.consumer("g", "c") is listening
    assert clients.consumer("another", "c") is None
    assert clients.consumer("g", "d") is None
