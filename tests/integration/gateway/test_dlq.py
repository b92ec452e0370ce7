"""`lakebroker dlq`: dead letters listed, chosen, and sent again."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message, send_request
from lakebroker_testing.prestarted import start
from tests.support.brokers.gateways import receive_all, run
from tests.support.waiting import wait_until

LETTERS = 70


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    options = {**OPTIONS, "defaultTopicQueueNums": "2"}
    with Gateway(tmp_path_factory.mktemp("gateway"), **options) as gateway:
        yield gateway


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
    for each in receive_all(client, name, name, count):
        answer = client.dead_letter(name, name, each)
        assert answer.status.code == pb.OK
    return client


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
    assert "only the first 2 dead letters are listed" in few.stderr
    client.close()


def test_a_replay_of_an_id_that_is_none_says_so(gateway: Gateway) -> None:
    give_up(gateway, "unknown", 2).close()
    known = rows(gateway, "unknown")[0]["message_id"]
    done = run(gateway, "dlq", "replay", "unknown", "--id", known, "--id", "nobody", status=1)
    assert "1 dead letter sent" in done.stdout
    assert (
        "no dead letter of unknown that was chosen has the id nobody; `lakebroker dlq list unknown`"
        in done.stderr
    )


def test_a_replay_sends_what_the_sender_gave(gateway: Gateway) -> None:
    client = give_up(gateway, "again", 6)
    letters = {row["message_id"]: row for row in rows(gateway, "again")}
    would = replayed(gateway, "again", "--filter", "number > 3", "--dry-run")
    assert {row["outcome"] for row in would} == {"would be sent"}
    assert client.receive("again", "again", wait_ms=0)[1] == []
    done = replayed(gateway, "again", "--filter", "number > 3")
    assert [row["outcome"] for row in done] == ["sent"] * 2
    found = receive_all(client, "again", "again", 2)
    for each in found:
        letter = letters[each.user_properties["REPLAY_OF"]]
        assert each.body.decode() == letter["body"]
        assert dict(each.user_properties) == letter["properties"] | {"REPLAY_OF": letter["message_id"]}
        assert each.system_properties.tag == "t"
        assert list(each.system_properties.keys) == letter["keys"]
        assert each.system_properties.delivery_attempt == 1
    assert {each.system_properties.message_id for each in found} == {row["new_message_id"] for row in done}
    client.close()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("NORMAL", []),
        ("FIFO", ["--message-group", "g"]),
        ("DELAY", ["--delay", "100ms"]),
        ("PRIORITY", ["--priority", "2"]),
        ("LITE", ["--lite-topic", "l"]),
        ("TRANSACTION", ["--transaction", "commit"]),
        ("TRANSACTION", ["--transaction", "commit", "--delay", "100ms"]),
    ],
)
def test_a_message_of_any_type_is_replayed_as_one(gateway: Gateway, kind: str, options: list[str]) -> None:
    name = f"{kind}-{len(options)}"
    run(gateway, "topic", "create", name, "--type", kind)
    run(gateway, "group", "create", name, "--retry-max", "0")
    run(gateway, "send", name, "x", *options)
    client = Client(gateway.address)
    (dead,) = receive_all(client, name, name, 1)
    assert client.dead_letter(name, name, dead).status.code == pb.OK
    (done,) = replayed(gateway, name)
    assert done["outcome"] == "sent"
    (found,) = receive_all(client, name, name, 1)
    assert found.system_properties.message_id == done["new_message_id"]
    for field in ("message_type", "message_group", "priority", "lite_topic"):
        assert getattr(found.system_properties, field) == getattr(dead.system_properties, field), field
    client.close()


def test_a_replay_that_resumes_sends_each_once(gateway: Gateway, tmp_path: Path) -> None:
    client = give_up(gateway, "resumed", 40)
    kept = ("--outcomes", str(tmp_path / "resumed.jsonl"))
    assert len(replayed(gateway, "resumed", *kept, "--dry-run")) == 40
    assert not any(tmp_path.iterdir())
    chosen = replayed(gateway, "resumed", *kept, "--filter", "number > 29")
    assert len(chosen) == 10
    assert len(replayed(gateway, "resumed", *kept, "--resume", "--dry-run")) == 30
    assert len(replayed(gateway, "resumed", *kept, "--resume")) == 30
    assert replayed(gateway, "resumed", *kept, "--resume") == []
    assert len(replayed(gateway, "resumed")) == 40, "without outcomes, all are sent"
    for each in receive_all(client, "resumed", "resumed", 80)[:5]:
        client.dead_letter("resumed", "resumed", each)
    new = replayed(gateway, "resumed", *kept, "--resume")
    assert len(new) == 5
    lines = [json.loads(line) for line in (tmp_path / "resumed.jsonl").read_text().splitlines()]
    assert len(lines) == 45
    assert [{"consumer_group": "resumed", **row} for row in new] == lines[40:]
    client.close()


def test_only_what_was_not_sent_is_sent_again(gateway: Gateway, tmp_path: Path) -> None:
    """Of a batch of dead letters some fail, by their topic: the others are sent, and not again."""
    client = give_up(gateway, "mixed", 20)
    run(gateway, "topic", "create", "closed")
    for number in range(20):
        sent = message("closed", b"closed %d" % number)
        assert client.call("SendMessage", send_request(sent)).status.code == pb.OK
    for each in receive_all(client, "closed", "mixed", 20):
        assert client.dead_letter("closed", "mixed", each).status.code == pb.OK
    run(gateway, "topic", "create", "closed", "--type", "DELAY")
    kept = ("--outcomes", str(tmp_path / "mixed.jsonl"))
    done = replayed(gateway, "mixed", *kept, status=1)
    assert {(row["topic"], row["outcome"] == "sent") for row in done} == {("mixed", True), ("closed", False)}
    assert len(done) == 40
    refused = run(gateway, "dlq", "replay", "mixed", *kept, "--resume", status=1)
    assert "20 dead letters could not be sent; the same with --resume sends them again" in refused.stderr
    assert refused.stdout.splitlines()[-1] == "0 dead letters sent"
    run(gateway, "topic", "create", "closed", "--type", "NORMAL")
    again = replayed(gateway, "mixed", *kept, "--resume")
    assert {(row["topic"], row["outcome"]) for row in again} == {("closed", "sent")}
    assert len(again) == 20
    bodies = sorted(each.body for each in receive_all(client, "mixed", "mixed", 20))
    assert bodies == sorted(b"letter %d" % n for n in range(20))
    bodies = sorted(each.body for each in receive_all(client, "closed", "mixed", 20))
    assert bodies == sorted(b"closed %d" % n for n in range(20))
    for topic in ("mixed", "closed"):
        assert client.receive(topic, "mixed", wait_ms=0)[1] == []
    client.close()


@pytest.mark.parametrize(
    ("name", "kind", "order"), [("ordered", "FIFO", "message_group"), ("lite", "LITE", "lite_topic")]
)
def test_behind_a_message_that_fails_those_in_order_with_it_are_held_back(
    gateway: Gateway, tmp_path: Path, name: str, kind: str, order: str
) -> None:
    run(gateway, "topic", "create", name, "--queues", "1", "--type", kind)
    run(gateway, "group", "create", name, "--retry-max", "0", "--fifo")
    client = Client(gateway.address)
    for number in range(8):
        sent = message(
            name, b"%d" % number, message_type=pb.MessageType.Value(kind), **{order: "ab"[number % 2]}
        )
        assert client.call("SendMessage", send_request(sent)).status.code == pb.OK
    for each in receive_all(client, name, name, 8):
        assert client.dead_letter(name, name, each).status.code == pb.OK
    run(gateway, "topic", "create", name, "--type", "NORMAL")
    kept = ("--outcomes", str(tmp_path / "outcomes.jsonl"))
    done = {row["origin_message_id"]: row["outcome"] for row in replayed(gateway, name, *kept, status=1)}
    refused = [each for each, outcome in done.items() if "CONFLICT_WITH_TYPE" in outcome]
    assert len(refused) == 2
    held = [outcome for each, outcome in done.items() if each not in refused]
    assert sorted(held) == sorted(
        f"failed: held back by {each} of its {order.replace('_', ' ')}" for each in refused for _ in range(3)
    )
    run(gateway, "topic", "create", name, "--type", kind)
    assert len(replayed(gateway, name, *kept, "--resume")) == 8
    found = receive_all(client, name, name, 8)
    for group, bodies in (("a", [b"0", b"2", b"4", b"6"]), ("b", [b"1", b"3", b"5", b"7"])):
        assert [each.body for each in found if getattr(each.system_properties, order) == group] == bodies
    client.close()


def test_a_replay_that_is_killed_goes_on_where_it_was(gateway: Gateway, tmp_path: Path) -> None:
    client = give_up(gateway, "killed", 40)
    file = tmp_path / "killed.jsonl"
    kept = ("killed", "--outcomes", str(file))
    slow = ("dlq", "replay", *kept, "--rate", "2", "--gateway", gateway.address)
    process = start(*slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: file.exists() and file.read_bytes().count(b"\n") >= 5)
    in_use = run(gateway, "dlq", "replay", *kept, "--resume", status=1).stderr
    process.kill()
    process.wait()
    assert "is in use by another replay" in in_use
    before = file.read_bytes().count(b"\n")
    assert 5 <= before < 40
    with file.open("ab") as torn:
        torn.write(b'{"group": "kil')
    done = run(gateway, "dlq", "replay", *kept, "--resume", "--json", "--rate", "10000")
    assert "the last line" in done.stderr
    assert len(done.stdout.splitlines()) == 40 - before
    outcomes = [json.loads(line) for line in file.read_text().splitlines()]
    assert len({(row["dlq_queue_id"], row["dlq_queue_offset"]) for row in outcomes}) == len(outcomes) == 40
    found = [each.user_properties["REPLAY_OF"] for each in receive_all(client, "killed", "killed", 40)]
    assert {row["origin_message_id"] for row in outcomes} == set(found)
    assert len(found) <= 41, "one may have been sent whose outcome was not written any more"
    client.close()


@pytest.mark.parametrize(
    ("content", "more", "why"),
    [
        ("", ["--resume", "--outcomes", "ABSENT"], "is not there: leave --resume out to begin a replay"),
        ("", ["--resume"], "name their file with --outcomes"),
        ("", ["--outcomes", "FOLDER"], "is no file: name another"),
        ("", ["--outcomes", "FOLDER/absent/x"], "cannot be opened: No such file or directory"),
        ("x\n", ["--outcomes", "FILE"], "has those of another replay: add --resume to go on with it"),
        ("x\n", ["--outcomes", "FILE", "--resume"], "line 1 of FILE is no outcome of a replay"),
        ("[1]\n", ["--outcomes", "FILE", "--resume"], "line 1 of FILE is no outcome of a replay"),
        ('{"group": 1}\n', ["--outcomes", "FILE", "--resume"], "line 1 of FILE is no outcome of a replay"),
        (
            '{"group": "g", "queue": 0, "offset": 0, "message_id": "m", "outcome": "sent"}\n',
            ["--outcomes", "FILE", "--resume"],
            "FILE is of consumer group g, not unfit: name another file",
        ),
    ],
)
def test_a_file_of_outcomes_that_cannot_be_used_is_said(
    gateway: Gateway, tmp_path: Path, content: str, more: list[str], why: str
) -> None:
    run(gateway, "group", "create", "unfit")
    file = tmp_path / "outcomes"
    file.write_text(content)
    names = {"FILE": str(file), "ABSENT": str(tmp_path / "absent"), "FOLDER": str(tmp_path)}
    for name, path in names.items():
        more = [each.replace(name, path) for each in more]
        why = why.replace(name, path)
    assert why in run(gateway, "dlq", "replay", "unfit", *more, status=2).stderr
    assert file.read_text() == content


def test_what_cannot_be_done_is_said(gateway: Gateway) -> None:
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
    client.close()
