"""`lakebroker topic`, `group`, `offset`, `subscription`, `client`, `broker`, `message` and `send`, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.support.brokers.gateways import answer, run, said
from tests.support.brokers.telemetry_client import TelemetryClient, answered, consumer_settings, not_consumed
from tests.support.waiting import wait_until

NEW_OPTIONS = {
    **OPTIONS,
    "brokerName": "broker-a",
    "defaultTopicQueueNums": "2",
    "lakeAutoCreateTopics": "false",
    "grpcProxyRelayRequestTimeoutInSeconds": "60",  # for clients on a busy machine
}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway"), **NEW_OPTIONS) as gateway:
        yield gateway


def test_a_topic_is_made_shown_changed_and_deleted(gateway: Gateway, name: str) -> None:
    made = answer(gateway, "topic", "create", name, "--queues", "3", "--type", "NORMAL")
    assert made == [
        {"name": name, "queues": 3, "types": "NORMAL", "configuration": {}, "created": True, "changed": False}
    ]
    assert answer(gateway, "topic", "create", name) == [{**made[0], "created": False}]
    assert "no spaces" in said(gateway, "topic", "create", "no spaces")
    described = answer(gateway, "topic", "describe", name)
    assert described | {"created_ms": 0} == {
        "name": name,
        "broker": "broker-a",
        "cluster": "DefaultCluster",
        "messageTypes": "NORMAL",
        "messages": "0",
        "order": "false",
        "perm": "6",
        "readQueueNums": "3",
        "writeQueueNums": "3",
        "created_ms": 0,
        "brokers": [{"broker": "broker-a", "gateway": gateway.address, "read_queues": 3, "write_queues": 3}],
    }
    assert described["created_ms"] > 0
    assert gateway.address in run(gateway, "topic", "describe", name).stdout
    assert answer(gateway, "topic", "update", name, "--queues", "4")[0]["changed"]
    assert "does not exist" in said(gateway, "topic", "update", f"{name}-x")
    assert "TOPIC_NOT_FOUND" in said(gateway, "topic", "describe", f"{name}-x")
    assert "would be deleted: add --yes" in said(gateway, "topic", "delete", name, status=2)
    assert answer(gateway, "topic", "delete", name, "--yes") == [{"name": name, "deleted": True}]
    assert f"there is no topic '{name}'" in said(gateway, "topic", "delete", name, "--yes")
    assert "conflict with system topic" in said(gateway, "topic", "delete", "TBW102", "--yes")
    assert name not in {each["name"] for each in answer(gateway, "topic", "list")}


def test_a_group_is_made_shown_changed_and_deleted(gateway: Gateway, name: str) -> None:
    run(gateway, "topic", "create", name)
    assert answer(gateway, "group", "create", name, "--fifo", "--retry-max", "2")[0]["created"]
    assert "does not exist" in said(gateway, "group", "update", f"{name}-x", "--fifo")
    assert answer(gateway, "group", "update", name, "--no-fifo")[0] == {
        "name": name, "retry_max_times": 2, "fifo": False, "configuration": {}, "created": False, "changed": True,
    }  # fmt: skip
    policy = {"groupRetryPolicy": {"type": "EXPONENTIAL"}}
    assert answer(gateway, "group", "update", name, "--configuration", json.dumps(policy))[0]["changed"]
    assert "is no JSON" in said(gateway, "group", "update", name, "--configuration", "{")
    refused = said(gateway, "group", "create", name, "--configuration", '{"brokerId":"x"}')
    assert f"brokerId of group {name} is 'x'; a whole number of" in refused
    (listed,) = [each for each in answer(gateway, "group", "list") if each["name"] == name]
    assert listed == {"name": name, "retry_max_times": 2, "fifo": False, "configuration": policy}
    assert (
        answer(gateway, "group", "describe", name)["configuration"]["groupRetryPolicy"]["type"]
        == "EXPONENTIAL"
    )
    assert '"type": "EXPONENTIAL"' in run(gateway, "group", "describe", name).stdout
    client = Client(gateway.address)
    for number in range(4):
        assert client.send(name, b"%d" % number).status.code == pb.OK
    first = client.receive(name, name, batch=1)[1]
    client.ack(name, name, *first)
    described = answer(gateway, "group", "describe", name)
    assert (described["name"], described["connected"], described["behind"]) == (name, 0, 3)
    (of_topic,) = described["topics"]
    assert (of_topic["topic"], of_topic["ready"], of_topic["in_flight"]) == (name, 3, 0)
    assert "topics:" in run(gateway, "group", "describe", name).stdout
    rows = answer(gateway, "offset", "list", name)
    assert [(each["topic"], each["queue"]) for each in rows] == [(name, 0), (name, 1)]
    assert sum(each["committed"] or 0 for each in rows) == 1
    assert sum(each["behind"] for each in rows) == 3
    assert answer(gateway, "offset", "reset", name, "--topic", name, "--to", "latest") == [
        {"group": name, "topic": name, "reset_to": "latest"}
    ]
    assert answer(gateway, "group", "describe", name)["behind"] == 0
    run(gateway, "offset", "reset", name, "--topic", name, "--to", "earliest")
    assert answer(gateway, "group", "describe", name)["behind"] == 4
    run(gateway, "offset", "reset", name, "--topic", name, "--to", "2036-01-01T00:00")
    assert {each["behind"] for each in answer(gateway, "offset", "list", name, "--topic", name)} == {0}
    run(gateway, "group", "delete", name, "--keep-offsets", "--yes")
    run(gateway, "group", "create", name)
    assert answer(gateway, "group", "describe", name)["behind"] == 0
    run(gateway, "group", "delete", name, "--yes")
    assert answer(gateway, "group", "create", name)[0]["retry_max_times"] == 16
    assert answer(gateway, "offset", "list", name) == []
    assert "--to soon is no time" in said(
        gateway, "offset", "reset", name, "--topic", name, "--to", "soon", status=2
    )
    assert "--to is missing" in said(gateway, "offset", "reset", name, "--topic", name, status=2)
    assert "--topic is missing" in said(gateway, "offset", "reset", name, status=2)
    assert "topic 'nobody' does not exist" in said(gateway, "offset", "list", name, "--topic", "nobody")
    assert "no consumer group 'nobody'" in said(gateway, "group", "describe", "nobody")
    assert "no consumer group 'nobody'" in said(gateway, "group", "delete", "nobody", "--yes")
    assert "consumer group 'nobody' does not exist" in said(gateway, "offset", "list", "nobody")
    client.close()


def test_messages_are_sent_and_looked_up(gateway: Gateway, name: str) -> None:
    run(gateway, "topic", "create", name)
    sent = [
        answer(gateway, "send", name, f"body {n}", "--tag", ("a", "b")[n % 2], "--key", f"k{n}", "--property", f"n={n}")[0]
        for n in range(5)
    ]  # fmt: skip
    piped = CliRunner().invoke(
        app,
        ["send", name, "-", "--message-group", "g", "--json", "--gateway", gateway.address],
        input=b"\xff\n",
    )
    assert piped.exit_code == 0, piped.output
    (found,) = answer(gateway, "message", sent[2]["message_id"], "--topic", name)
    assert (found["body"], found["keys"], found["tag"]) == ("body 2", ["k2"], "a")
    assert found["properties"] == {"n": "2"}
    (found,) = answer(gateway, "message", "k3", "--topic", name)
    assert found["message_id"] == sent[3]["message_id"]
    listed = answer(gateway, "message", "--topic", name)
    assert [each["body"] for each in listed[1:]] == [f"body {n}" for n in (4, 3, 2, 1, 0)]
    assert listed[0]["body_base64"] == "/wo="
    assert [each["body"] for each in answer(gateway, "message", "--topic", name, "--tag", "b")] == [
        "body 3",
        "body 1",
    ]
    few = run(gateway, "message", "--topic", name, "--limit", "2")
    assert "only the newest 2 messages are listed" in few.stderr
    assert "body 4" in few.stdout
    assert "body 3" not in few.stdout
    of_queues = [answer(gateway, "message", "--topic", name, "--queue", each) for each in ("0", "1")]
    assert len(of_queues[0]) + len(of_queues[1]) == 6
    assert answer(gateway, "message", "--topic", name, "--since", "2036-01-01") == []
    assert (
        len(answer(gateway, "message", "--topic", name, "--since", "2020-01-01", "--until", "2036-01-01"))
        == 6
    )
    assert "no message with id or key 'k9'" in said(gateway, "message", "k9", "--topic", name)
    assert "--topic is missing" in said(gateway, "message", "k9", status=2)
    assert "leave one of them out" in said(gateway, "message", "k9", "--topic", name, "--tag", "a", status=2)
    assert "TOPIC_NOT_FOUND" in said(gateway, "message", "k9", "--topic", "nobody")
    assert "has no queue 7" in said(gateway, "message", "--topic", name, "--queue", "7")
    assert "TOPIC_NOT_FOUND" in said(gateway, "send", "nobody", "x")
    assert "MESSAGE_BODY_EMPTY" in said(gateway, "send", name, "")
    assert "write it as name=value" in said(gateway, "send", name, "x", "--property", "n", status=2)


def test_consumers_are_listed_and_asked(gateway: Gateway, name: str) -> None:
    run(gateway, "topic", "create", name)
    (sent,) = answer(gateway, "send", name, "x")
    settings = consumer_settings(name, name, expression="a || b")
    with TelemetryClient(gateway.address, f"c-{name}", settings) as consumer:
        (listed,) = answer(gateway, "client", "list", name, "--topic", name)
        assert (listed["client_id"], listed["language"], listed["version"]) == (f"c-{name}", "JAVA", "5.0.7")
        described = answer(gateway, "client", "describe", name, f"c-{name}")
        assert described["hostname"] == "host-1"
        assert described["subscriptions"][0]["expression"] == "a || b"
        assert described["in_flight"] == []
        consumer.answers = lambda command: [answered(command, text="at Main.main")]
        assert run(gateway, "client", "stack", name, f"c-{name}").stdout == "at Main.main\n"
        consumer.answers = not_consumed
        refused = said(
            gateway, "client", "verify", name, f"c-{name}", "--topic", name, "--id", sent["message_id"]
        )
        assert "FAILED_TO_CONSUME_MESSAGE: saw x" in refused
        assert "no consumer 'nobody'" in said(gateway, "client", "describe", name, "nobody")
        (subscription,) = answer(gateway, "subscription", "list", "--topic", name)
        assert (subscription["group"], subscription["online"]) == (name, True)
        (of_client,) = answer(gateway, "subscription", "list", "--group", name, "--clients")
        assert of_client["client_id"] == f"c-{name}"
        assert "stop them first" in said(gateway, "subscription", "delete", name, name, "--yes")
        assert answer(gateway, "broker", "describe")["consumers"] == 1
        consumer.stop()
    assert answer(gateway, "subscription", "delete", name, name, "--yes")[0]["deleted"]
    assert "--topic or --id is missing" in said(gateway, "client", "verify", name, "c", status=2)


def test_the_log_level(gateway: Gateway) -> None:
    assert "lakeLogLevel is debug, it was info" in run(gateway, "broker", "log-level", "debug").stdout
    assert "lakeLogLevel is info, it was debug" in run(gateway, "broker", "log-level", "info").stdout
    assert "level loud is unknown: use trace, debug" in said(gateway, "broker", "log-level", "loud", status=2)


def test_what_cannot_be_reached_is_said(gateway: Gateway) -> None:
    done = CliRunner().invoke(app, ["message", "k", "--topic", "t", "--gateway", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert "no gateway at 127.0.0.1:1: connection refused" in done.stderr
    done = CliRunner().invoke(app, ["group", "create", "g", "--namesrv", "127.0.0.1:1"])
    assert done.exit_code == 1
    assert "--namesrv: no name server answers" in done.stderr


def test_with_name_servers_every_broker_is_told(tmp_path: Path, name: str) -> None:
    alone = {**NEW_OPTIONS, "lakeWithNamesrv": "true"}
    with Gateway(tmp_path / "a", **alone) as first:
        name_server = f"127.0.0.1:{first.name_server_port}"
        other = {**NEW_OPTIONS, "brokerName": "broker-b", "namesrvAddr": name_server}
        with Gateway(tmp_path / "b", **other) as second:

            def everywhere(*arguments: str) -> Any:
                done = CliRunner().invoke(app, [*arguments, "--namesrv", name_server, "--json"])
                assert done.exit_code == 0, done.output
                return json.loads(done.stdout)

            told = {first.address, second.address}
            wait_until(lambda: {each["gateway"] for each in everywhere("topic", "create", name)} == told)
            made = everywhere("group", "create", name, "--fifo")
            assert {(each["gateway"], each["fifo"], each["created"]) for each in made} == {
                (first.address, True, True), (second.address, True, True),
            }  # fmt: skip
            for gateway in (first, second):
                assert answer(gateway, "group", "describe", name)["fifo"]
                run(gateway, "send", name, f"from {gateway.grpc_port}", "--key", "k")
            found = everywhere("message", "k", "--topic", name)
            assert {each["broker"]: each["body"] for each in found} == {
                "broker-a": f"from {first.grpc_port}",
                "broker-b": f"from {second.grpc_port}",
            }
            everywhere("offset", "reset", name, "--topic", name, "--to", "latest")
            assert {each["behind"] for each in everywhere("offset", "list", name)} == {0}
            assert {each["deleted"] for each in everywhere("group", "delete", name, "--yes")} == {True}
