"""Topics that do not exist: as at the real proxy unless lakeAutoCreateTopics says otherwise."""

from __future__ import annotations

from pathlib import Path

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway


def codes(client: Client, topic: str) -> list[int]:
    """What QueryRoute, QueryAssignment, SendMessage and ReceiveMessage answer, in this order."""
    resource = pb.Resource(name=topic)
    route = client.call("QueryRoute", rpc.QueryRouteRequest(topic=resource))
    assignment = client.call(
        "QueryAssignment", rpc.QueryAssignmentRequest(topic=resource, group=pb.Resource(name="g"))
    )
    return [
        route.status.code,
        assignment.status.code,
        client.send(topic, b"x").status.code,
        client.receive(topic, "g")[0],
    ]


def test_a_missing_topic_is_not_made_by_use(tmp_path: Path) -> None:
    with Gateway(tmp_path, autoCreateTopicEnable="true", lakeAutoCreateTopics="false", **OPTIONS) as gateway:
        client = Client(gateway.address)
        for _ in range(2):  # nor by having been asked for before
            assert codes(client, "typing-eror") == [pb.TOPIC_NOT_FOUND] * 4
        client.channel.close()


def test_it_is_made_where_that_is_asked_for(tmp_path: Path) -> None:
    with Gateway(tmp_path, autoCreateTopicEnable="false", lakeAutoCreateTopics="true", **OPTIONS) as gateway:
        client = Client(gateway.address)
        assert codes(client, "on-first-use") == [pb.OK] * 4
        client.channel.close()
