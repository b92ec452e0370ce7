"""Routes: this broker's queues, its peers' and those of others, as many as an answer has room for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from broker_gateway.cluster.broker_config import Member
from broker_gateway.cluster.peer_routes import PeerRoutes
from broker_gateway.config.gateway import GatewayConfig, load_config
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.routes import MAX_ROUTE_QUEUES, BrokerQueues, Endpoint, Routes
from broker_gateway.metadata.catalog import MAX_QUEUES, READ, WRITE, Catalog, Topic
from broker_gateway.metadata.peers import Peers
from broker_gateway.protocol.body.route import QueueData

REACHED = Endpoint("broker.example", 8081)
PEERS = [{"name": "own", "grpc": 8081}, {"name": "b", "grpc": 8082}, {"name": "a", "grpc": 8083}]
ELSEWHERE = Member("far", "10.0.0.9", 9081)
BESIDE = Member("near", "10.0.0.1", 9082)


class Told(PeerRoutes):
    """What name servers have said of every topic."""

    def __init__(
        self, config: GatewayConfig, *queues: tuple[Member, QueueData], types: Sequence[str] = ()
    ) -> None:
        super().__init__(config.broker.broker_name, config.registration)
        self._told, self._types = list(queues), tuple(types)

    def queues(self, topic: str) -> list[tuple[Member, QueueData]]:
        return self._told

    def message_types(self, topic: str) -> tuple[str, ...]:
        return self._types


def options(**given: str) -> GatewayConfig:
    return load_config(None, {"brokerName": "own", "brokerIP1": "10.0.0.1", **given}, {})[0]


class Found:
    """Routes of a broker, and what they are made of."""

    def __init__(
        self,
        *topics: Topic,
        config: GatewayConfig | None = None,
        others: Sequence[tuple[Member, QueueData]] = (),
        types: Sequence[str] = (),
        peers: Path | None = None,
    ) -> None:
        config = config or options()
        self.catalog, known = Catalog(), Peers(peers, "own")
        for topic in topics:
            self.catalog.put_topic(topic)
        known.refresh()
        told = Told(config, *others, types=types)
        self.routes = Routes(config, Resources(config, self.catalog), known, told)

    def of(self, topic: str) -> dict[str, tuple[str, int, int, int]]:
        """Host, port, queues to read and to write, by broker."""
        return {
            each.broker: (*each.endpoint, each.read, each.write)
            for each in self.routes.of(topic, REACHED).queues
        }


@pytest.fixture
def peers(tmp_path: Path) -> Path:
    file = tmp_path / "peers.json"
    file.write_text(json.dumps(PEERS))
    return file


@pytest.mark.parametrize(
    ("topic", "broker", "queues"),
    [(6, 6, (3, 2)), (4, 6, (3, 0)), (2, 6, (0, 2)), (6, 4, (3, 0)), (6, 2, (0, 2)), (4, 2, (0, 0))],
)
def test_queues_are_what_topic_and_broker_permit(topic: int, broker: int, queues: tuple[int, int]) -> None:
    found = Found(Topic("t", 3, 2, topic, ("FIFO",)))
    assert found.routes.of("t", REACHED).message_types == ("FIFO",)
    found.routes.configure(options(brokerPermission=str(broker)))
    assert found.routes.of("t", REACHED).queues == [BrokerQueues("own", REACHED, *queues)]


def test_peers_have_the_same_queues_at_the_host_that_was_reached(peers: Path) -> None:
    found = Found(Topic("t", 3, 2), peers=peers)
    assert found.of("t") == {
        "own": ("broker.example", 8081, 3, 2),
        "a": ("broker.example", 8083, 3, 2),
        "b": ("broker.example", 8082, 3, 2),
    }
    assert [each.broker for each in found.routes.of("t", REACHED).queues] == ["own", "a", "b"]


def test_a_peer_is_listed_once_with_what_it_registered(peers: Path) -> None:
    registered = (Member("a", "10.0.0.1", 8083), QueueData("a", 8, 8, READ))
    found = Found(Topic("t", 3, 2), peers=peers, others=[registered]).routes.of("t", REACHED).queues
    assert found[1:] == [
        BrokerQueues("b", Endpoint("broker.example", 8082), 3, 2),
        BrokerQueues("a", Endpoint("broker.example", 8083), 8, 0),
    ]


def test_others_are_where_they_say_with_what_they_permit() -> None:
    """Those of this broker's own address are where the client came; of none are there more queues than a topic has."""
    others = [
        (BESIDE, QueueData("near", 5, 4, WRITE)),
        (ELSEWHERE, QueueData("far", MAX_QUEUES + 1, 1 << 30)),
    ]
    assert Found(Topic("t", 1, 1), others=others).of("t") == {
        "own": ("broker.example", 8081, 1, 1),
        "near": ("broker.example", 9082, 0, 4),
        "far": ("10.0.0.9", 9081, MAX_QUEUES, MAX_QUEUES),
    }


def test_a_topic_of_others_is_made_here_only_by_a_broker_with_peers(peers: Path) -> None:
    others = [(ELSEWHERE, QueueData("far", 5, 4))]
    creating = options(lakeAutoCreateTopics="true", defaultTopicQueueNums="2")
    alone = Found(config=creating, others=others, types=["DELAY"])
    route = alone.routes.of("t", REACHED)
    assert (route.queues, route.message_types) == (
        [BrokerQueues("far", Endpoint("10.0.0.9", 9081), 5, 4)],
        ("DELAY",),
    )
    assert alone.catalog.topic("t") is None
    assert [*Found(config=options(), others=others, peers=peers).of("t")] == ["far"]
    sharing = Found(config=creating, others=others, peers=peers)
    assert [*sharing.of("t")] == ["own", "a", "b", "far"]
    made = sharing.catalog.topic("t")
    assert made is not None
    assert (made.read_queues, made.write_queues) == (2, 2)


def test_a_topic_that_nobody_has_is_made_while_that_is_allowed() -> None:
    found = Found()
    with pytest.raises(ServiceError, match="topic 't' does not exist") as refused:
        found.of("t")
    assert refused.value.reason is Reason.TOPIC_NOT_FOUND
    assert Found(config=options(lakeAutoCreateTopics="true", defaultTopicQueueNums="2")).of("t") == {
        "own": ("broker.example", 8081, 2, 2)
    }


@pytest.mark.parametrize("here", [True, False])
def test_brokers_beyond_what_an_answer_holds_are_left_out(here: bool) -> None:
    """Whichever of both numbers is the larger counts, and this broker stands first."""
    others = [
        (
            Member(f"b{number:02}", "10.0.0.9", 9000 + number),
            QueueData(f"b{number:02}", number % 2, MAX_QUEUES),
        )
        for number in range(40)
    ]
    topics = [Topic("t", MAX_QUEUES, 1)] if here else []
    found = list(Found(*topics, others=others).of("t"))
    assert len(found) == MAX_ROUTE_QUEUES // MAX_QUEUES
    names = [*(["own"] if here else []), *(member.name for member, _ in others)]
    assert found == names[: len(found)]


def unanswered(check: Callable[[Routes], None], *topics: Topic) -> None:
    """Runs a check while no name server has said anything yet."""

    async def scenario() -> None:
        config = options(lakeAutoCreateTopics="true")
        catalog, peer_routes = Catalog(), PeerRoutes("own", config.registration)
        for topic in topics:
            catalog.put_topic(topic)
        peer_routes.start(lambda: ["127.0.0.1:1"], "10.0.0.1:10911")
        try:
            check(Routes(config, Resources(config, catalog), Peers(None, "own"), peer_routes))
        finally:
            await peer_routes.stop()
        assert [*catalog.topics()] == [*topics]

    asyncio.run(scenario())


def test_no_topic_is_made_while_nobody_has_said_who_has_it() -> None:
    def check(routes: Routes) -> None:
        with pytest.raises(ServiceError, match="which brokers have topic 'new'; try again") as refused:
            routes.of("new", REACHED)
        assert refused.value.reason is Reason.PROXY_TIMEOUT
        assert routes.of("here", REACHED).queues == [BrokerQueues("own", REACHED, 1, 1)]

    unanswered(check, Topic("here", 1, 1))


def test_a_topic_that_cannot_be_is_asked_of_nobody() -> None:
    def check(routes: Routes) -> None:
        known: list[str] = []
        for topic in ("t", "no topic!", ""):
            routes.when_known(topic, partial(known.append, topic))
        assert known == ["no topic!", ""]

    unanswered(check)
