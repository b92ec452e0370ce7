"""`lakebroker dlq`: dead letters listed, chosen, and sent again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request

LETTERS = 70


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    options = {**OPTIONS, "defaultTopicQueueNums": "2"}
    with Gateway(tmp_path_factory.mktemp("gateway"), **options) as gateway:
        yield gateway


def run(gateway: Gateway, *arguments: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, [*arguments, "--gateway", gateway.address])
    assert done.exit_code == status, done.output
    return done


def rows(gateway: Gateway, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(gateway, "dlq", "list", *arguments, "--json").stdout)
    return found


def replayed(gateway: Gateway, *arguments: str, status: int = 0) -> list[dict[str, Any]]:
    done = run(gateway, "dlq", "replay", *arguments, "--json", "--rate", "10000", status=status)
    return [json.loads(line) for line in done.stdout.splitlines()]


def give_up(gateway: Gateway, name: str, count: int = LETTERS) -> Client:
    """A topic and a group of that name; all its messages are the group's dead letters."""
    run(gateway, "topic", "create", name)
    run(gateway, "group", "create", name, "--retry-max", "0")
    client = Client(gateway.address)
    for number in range(count):
        properties = {"number": str(number), "region": ("north", "south")[number % 2]}
        sent = message(name, b"letter %d" % number, properties, tag="t", keys=[f"k{number}"])
        assert client.call("SendMessage", send_request(sent)).status.code == pb.OK
    for each in received(client, name, name, count):
        answer = client.dead_letter(name, name, each)
        assert answer.status.code == pb.OK
    return client


def received(client: Client, topic: str, group: str, count: int) -> list[pb.Message]:
    found: list[pb.Message] = []
    while len(found) < count:
        code, more = client.receive(topic, group, wait_ms=5000)
        assert code == pb.OK
        found += more
    return found


def test_dead_letters_are_listed_and_chosen(gateway: Gateway) -> None:
    client = give_up(gateway, "chosen")
    found = rows(gateway, "chosen", "--limit", "1000")
    assert sorted(row["body"] for row in found) == sorted(f"letter {n}" for n in range(LETTERS))
    assert {row["topic"] for row in found} == {"chosen"}
    assert found[0]["properties"]["region"] in ("north", "south")
    north = rows(gateway, "chosen", "--filter", "region = 'north' AND number < 10", "--limit", "1000")
    assert sorted(row["body"] for row in north) == [f"letter {n}" for n in range(0, 10, 2)]
    one = rows(gateway, "chosen", "--id", found[3]["message_id"])
    assert [row["body"] for row in one] == [found[3]["body"]]
    assert rows(gateway, "chosen", "--topic", "others") == []
    assert rows(gateway, "chosen", "--until", "2020-01-01") == []
    assert len(rows(gateway, "chosen", "--since", "2020-01-01T00:00Z", "--limit", "1000")) == LETTERS
    few = run(gateway, "dlq", "list", "chosen", "--limit", "2")
    assert "only the first 2 are listed" in few.stderr
    client.close()


def test_a_replay_sends_what_the_sender_gave(gateway: Gateway) -> None:
    client = give_up(gateway, "again", 6)
    letters = {row["message_id"]: row for row in rows(gateway, "again")}
    would = replayed(gateway, "again", "--filter", "number > 3", "--dry-run")
    assert {row["outcome"] for row in would} == {"would be sent"}
    assert client.receive("again", "again", wait_ms=0)[1] == []
    done = replayed(gateway, "again", "--filter", "number > 3")
    assert [row["outcome"] for row in done] == ["sent"] * 2
    found = received(client, "again", "again", 2)
    for each in found:
        letter = letters[each.user_properties["REPLAY_OF"]]
        assert each.body.decode() == letter["body"]
        assert dict(each.user_properties) == letter["properties"] | {"REPLAY_OF": letter["message_id"]}
        assert each.system_properties.tag == "t"
        assert list(each.system_properties.keys) == letter["keys"].split()
        assert each.system_properties.delivery_attempt == 1
    assert {each.system_properties.message_id for each in found} == {row["new_message_id"] for row in done}
    client.close()


def test_a_replay_that_resumes_sends_each_once(gateway: Gateway) -> None:
    client = give_up(gateway, "resumed", 40)
    assert len(replayed(gateway, "resumed", "--resume", "--dry-run")) == 40
    assert len(replayed(gateway, "resumed", "--resume")) == 40
    assert replayed(gateway, "resumed", "--resume") == []
    assert len(replayed(gateway, "resumed")) == 40
    for each in received(client, "resumed", "resumed", 80)[:5]:
        client.dead_letter("resumed", "resumed", each)
    assert len(replayed(gateway, "resumed", "--resume")) == 5
    client.close()


def test_what_cannot_be_done_is_said(gateway: Gateway, tmp_path: Path) -> None:
    assert "no consumer group 'nobody'" in run(gateway, "dlq", "list", "nobody", status=1).stderr
    run(gateway, "group", "create", "healthy")
    assert rows(gateway, "healthy") == []
    client = give_up(gateway, "wrong", 1)
    wrong = run(gateway, "dlq", "list", "wrong", "--filter", "region LIKE 'n%'", status=1).stderr
    assert "ILLEGAL_FILTER_EXPRESSION" in wrong
    assert "there is no LIKE" in wrong
    assert (
        "--since soon is no time" in run(gateway, "dlq", "list", "wrong", "--since", "soon", status=2).stderr
    )
    mixed = run(gateway, "dlq", "replay", "wrong", "--resume", "--topic", "t", status=2).stderr
    assert "leave out --filter, --topic" in mixed
    client.close()


def test_a_topic_that_refuses_is_an_outcome(gateway: Gateway) -> None:
    client = give_up(gateway, "refusing", 2)
    run(gateway, "topic", "create", "refusing", "--type", "DELAY")
    for _ in range(2):
        done = replayed(gateway, "refusing", "--resume", status=1)
        assert done[0]["outcome"].startswith("failed: MESSAGE_PROPERTY_CONFLICT_WITH_TYPE")
    run(gateway, "topic", "create", "refusing", "--type", "NORMAL")
    assert [row["outcome"] for row in replayed(gateway, "refusing", "--resume")] == ["sent"] * 2
    client.close()
