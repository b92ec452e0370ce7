"""Topics that do not exist: as at the real proxy unless lakeAutoCreateTopics says otherwise."""

from __future__ import annotations

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker


def codes(broker: InProcessBroker, topic: str) -> list[int]:
    """What QueryRoute, QueryAssignment, SendMessage and ReceiveMessage answer, in this order."""
    resource = pb.Resource(name=topic)
    route = broker.call("QueryRoute", rpc.QueryRouteRequest(topic=resource))
    assignment = broker.call(
        "QueryAssignment", rpc.QueryAssignmentRequest(topic=resource, group=pb.Resource(name="g"))
    )
    return [
        route.status.code,
        assignment.status.code,
        broker.send(topic, b"x").status.code,
        broker.receive(topic, "g")[0],
    ]


def test_a_missing_topic_is_not_made_by_use() -> None:
    with InProcessBroker(autoCreateTopicEnable="true", lakeAutoCreateTopics="false") as broker:
        for _ in range(2):  # nor by having been asked for before
            assert codes(broker, "typing-eror") == [pb.TOPIC_NOT_FOUND] * 4


def test_it_is_made_where_that_is_asked_for() -> None:
    with InProcessBroker(autoCreateTopicEnable="false", lakeAutoCreateTopics="true") as broker:
        assert codes(broker, "on-first-use") == [pb.OK] * 4
