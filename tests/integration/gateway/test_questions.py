"""`message`, `trace`, `lag` and `dlq list`, asked of a lake, of a gateway, and of both: what both know is the same."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO

import pytest
from click.testing import Result
from typer.testing import CliRunner

from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.gateway_calls import Reached
from broker_gateway.cli.main import app
from broker_gateway.cli.questions import asked as places
from broker_gateway.cli.questions.brokers import OfBrokers
from broker_gateway.cli.questions.lake import OfLake
from broker_gateway.cli.questions.letters import EVERY
from broker_gateway.cli.questions.wanted import Answers, Wanted
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import LogWriter
from lakebroker_testing.messages import message, send_request
from lakebroker_testing.ports import free_ports
from lakebroker_testing.prestarted import Process, start
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.source.access import Access
from structured_streaming.source.log_ends import LogEnds
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.maintained import reput
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.timeout(900)

Row = dict[str, Any]
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
MINE = ("--topic", "orders")
OF_LAKES = {"queue_id": None, "queue_offset": None, "attempts": None, "reason": None}
"""What brokers do not tell of dead letters."""
FOREVER_MS = 3_600_000


class Asked(NamedTuple):
    """A gateway, the lake that has all its log, and one that has it but for the newest, and an older broker's."""

    gateway: Gateway
    lake: Path
    years: Path
    ids: list[str]

    @property
    def places(self) -> dict[str, tuple[str, ...]]:
        of_gateway = ("--gateway", self.gateway.address)
        return {"lake": ("--lake", str(self.lake)), "gateway": of_gateway, "both": ("--lake", str(self.lake), *of_gateway)}  # fmt: skip


@pytest.fixture(scope="module")
def all_of_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("questions")
    lake, years = folder / "lake", folder / "years"
    empty_lake(str(lake))
    empty_lake(str(years))
    with LogWriter(folder / "old", "broker-old") as writer:
        writer.record("orders", b"of another age", TAGS="t0", KEYS="old-key", UNIQ_KEY="OLD")
    start, end = cuts(folder / "old", 1)
    commit(years, manifest(years, folder / "old", start, end))
    with Gateway(folder / "gateway", **OPTIONS) as gateway:
        client = Client(gateway.address)
        for arguments in (
            ("topic", "create", "orders", "--queues", "2"),
            ("topic", "create", "returns", "--queues", "1"),
            ("group", "create", "audit", "--retry-max", "0"),
            ("group", "create", "billing", "--retry-max", "0"),
            ("group", "create", "idle"),
        ):
            run(*arguments, "--gateway", gateway.address)
        ids = [send(client, "orders", number) for number in range(8)]
        send(client, "returns", 8)
        into(years, gateway)
        for group, topic in (("audit", "orders"), ("audit", "returns"), ("billing", "orders")):
            got = receive(client, topic, group, 8 if topic == "orders" else 1)
            assert client.ack(topic, group, *got[:2]).status.code == pb.OK
            for each in got[2:4]:
                assert client.dead_letter(topic, group, each).status.code == pb.OK
        into(lake, gateway)
        yield Asked(gateway, lake, years, ids)
        client.close()


def into(lake: Path, gateway: Gateway) -> None:
    """All that the gateway has answered to goes into a lake."""
    ends = LogEnds([f"broker:{gateway.address}"], Access())
    ends.now()
    ends.close()
    reput(gateway.store, lake)


def body_of(number: int) -> bytes:
    return b"\xff\x00" if number == 1 else f"body {number} ".encode() * (number * 10 + 1)


def send(client: Client, topic: str, number: int) -> str:
    body = body_of(number)
    system: dict[str, Any] = {"tag": f"t{number % 3}", "keys": [f"k{number}", "shared"]}
    if number == 2:
        body, system["body_encoding"] = gzip.compress(body), pb.GZIP
    sent = message(topic, body, {"n": str(number)}, **system)
    assert client.call("SendMessage", send_request(sent)).status.code == pb.OK
    return str(sent.system_properties.message_id)


def receive(client: Client, topic: str, group: str, count: int) -> list[pb.Message]:
    """All that there are, each for so long that nothing changes by itself while the test runs."""
    found: list[pb.Message] = []
    while len(found) < count:
        code, more = client.receive(topic, group, wait_ms=5000, invisible_ms=FOREVER_MS)
        assert code == pb.OK
        found += more
    return sorted(
        found, key=lambda each: (each.system_properties.queue_id, each.system_properties.queue_offset)
    )


def run(*arguments: str, status: int = 0, **environment: str) -> Result:
    done = CliRunner(env={"COLUMNS": "200", **environment}).invoke(app, arguments)
    assert done.exit_code == status, (arguments, done.output, done.exception)
    return done


@cache  # nothing changes while these tests run
def rows(*arguments: str) -> list[Row]:
    found: list[Row] = json.loads(run(*arguments, "--json").stdout)
    return found


@pytest.fixture(scope="module")
def answers(all_of_it: Asked) -> Iterator[dict[str, Answers]]:
    """Those whom commands ask, by place, kept open."""
    with asked(all_of_it.gateway.address, str(all_of_it.lake)) as found:
        yield found


@contextmanager
def asked(address: str, lake: str) -> Iterator[dict[str, Answers]]:
    with (
        EmbeddedEngine.open(lake) as alone,
        EmbeddedEngine.open(lake, source={"brokers": address}, strict=True) as union,
    ):
        yield {
            "lake": OfLake(alone, "the lake"),
            "gateway": OfBrokers(Reached(address, "", None, None)),
            "both": OfLake(
                union, "the lake and the log", brokers=OfBrokers(Reached(address, "", None, None))
            ),
        }


@pytest.mark.parametrize(
    "question",
    [
        {"key": "k3"},
        {"key": "ID of 3"},
        {"key": "k1"},
        {"key": "shared"},
        {"key": "shared", "most": 3},
        {"tag": "t0 || t2"},
        {"queue": 1, "since": LONG_AGO},
        {"key": "shared", "queue": 0},
        {"until": LONG_AGO},
    ],
    ids=str,
)
def test_a_message_is_the_same_wherever_it_is_asked_for(
    all_of_it: Asked, answers: dict[str, Answers], question: dict[str, Any]
) -> None:
    if question.get("key") == "ID of 3":
        question = {"key": all_of_it.ids[3]}
    wanted = Wanted(**{"most": 100, "topic": "orders", **question})
    found = {name: each.messages(wanted) for name, each in answers.items()}
    assert found["lake"] == found["gateway"] == found["both"]
    assert bool(found["lake"]) is ("until" not in question)
    for row in found["lake"]:
        number = int(row["properties"]["n"])
        assert (row["topic"], row["broker"], row["message_id"]) == ("orders", "broker-a", all_of_it.ids[number])  # fmt: skip
        assert (row["keys"], row["tag"]) == ([f"k{number}", "shared"], f"t{number % 3}")
        assert row["body"] == body_of(number)
        assert row["body_bytes"] == len(row["body"])


def test_messages_are_printed_the_same_wherever_they_are_asked_for(all_of_it: Asked) -> None:
    lake, gateway, both = (rows("message", "shared", *MINE, *place) for place in all_of_it.places.values())
    assert lake == gateway == both
    assert [row["body_base64"] for row in lake if row["properties"] == {"n": "1"}] == ["/wA="]
    assert all(row["store_timestamp"].endswith("Z") for row in lake)


def test_messages_of_a_lake_are_found_in_every_topic(all_of_it: Asked) -> None:
    lake = all_of_it.places["lake"]
    assert [row["topic"] for row in rows("message", "k8", *lake)] == ["returns", "%DLQ%audit"][:1]
    assert {row["topic"] for row in rows("message", "shared", *lake)} == {
        "orders",
        "returns",
        "%DLQ%audit",
        "%DLQ%billing",
    }
    assert len(rows("message", "shared", *MINE, *lake)) == 8


def test_lag_is_the_same_wherever_it_is_asked_for(answers: dict[str, Answers]) -> None:
    for question in (("", ""), ("audit", "orders")):
        found = {name: each.lag(*question) for name, each in answers.items()}
        assert found["lake"] == found["both"]
        assert found["lake"]
        assert all(row["commit_timestamp"] is not None for row in found["lake"]), "the lake knows it"
        assert found["gateway"] == [row | {"commit_timestamp": None} for row in found["lake"]]
    of_queues = found["both"]
    assert len(of_queues) == 2
    assert [row["lag"] for row in of_queues] == [
        row["max_offset"] - row["committed_offset"] for row in of_queues
    ]
    assert sum(row["lag"] for row in of_queues) == 8 - 4
    assert {row["consumer_group"] for row in answers["gateway"].lag("", "")} == {"audit", "billing"}


def test_a_queue_without_messages_ends_where_its_broker_says(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    empty_lake(str(lake))
    with Gateway(tmp_path / "gateway", **OPTIONS) as gateway:
        at = ("--gateway", gateway.address)
        run("topic", "create", "quiet", "--queues", "1", *at)
        client = Client(gateway.address)
        client.receive("quiet", "audit", wait_ms=1)
        into(lake, gateway)
        for place, end in ((("--lake", str(lake)), None), (at, 0), (("--lake", str(lake), *at), 0)):
            (queue,) = rows("lag", "audit", *place)
            assert (queue["committed_offset"], queue["max_offset"], queue["lag"]) == (0, end, end), place
        client.close()


def test_where_a_message_was_stored_is_the_same_and_the_lake_tells_the_rest(
    all_of_it: Asked, answers: dict[str, Answers]
) -> None:
    for key in (all_of_it.ids[0], "k7"):
        found = {name: each.trace(Wanted(100, topic="orders", key=key)) for name, each in answers.items()}
        assert found["lake"] == found["both"]
        assert found["gateway"] == [row for row in found["lake"] if row["event"] == "stored"]
        assert [row["event_timestamp"] for row in found["lake"]] == sorted(
            row["event_timestamp"] for row in found["lake"]
        )
    (dead,) = answers["lake"].dead_letters("audit", EVERY, 1)
    told = answers["lake"].trace(Wanted(100, key=dead["message_id"]))
    events = [(row["event"], row["topic"], row["consumer_group"]) for row in told]
    assert set(events) >= {
        ("stored", "orders", None),
        ("delivered", "orders", "audit"),
        ("dead_lettered", "orders", "audit"),
        ("stored", "%DLQ%audit", None),
    }
    said = run("trace", "k0", *MINE, *all_of_it.places["gateway"])
    assert said.stderr == (
        "lakebroker: a broker keeps no history of deliveries, so that only where messages were stored is shown; add "
        "--lake LOCATION for the rest\n"
    )
    assert said.stdout.splitlines()[0].startswith(
        f"message_id {all_of_it.ids[0]}, topic orders, broker broker-a"
    )


def test_dead_letters_are_the_same_wherever_they_are_asked_for(answers: dict[str, Answers]) -> None:

    def asked(group: str = "", most: int = 100, **choice: Any) -> list[Row]:
        found = {
            name: each.dead_letters(group, EVERY._replace(**choice), most) for name, each in answers.items()
        }
        assert found["lake"] == found["both"]
        assert found["gateway"] == [row | OF_LAKES for row in found["lake"]]
        return found["lake"]

    letters = asked()
    for each in letters:
        (before,) = answers["lake"].messages(
            Wanted(2, topic="orders", queue=each["queue_id"], key=each["message_id"])
        )
        assert (each["queue_offset"], each["body"]) == (before["queue_offset"], before["body"])
    assert [(row["consumer_group"], row["topic"]) for row in letters] == [("audit", "orders")] * 2 + [("billing", "orders")] * 2  # fmt: skip
    assert {(row["attempts"], row["reason"]) for row in letters} == {
        (1, "given up by the consumer after 1 delivery attempt")
    }
    assert asked("audit") == letters[:2]
    assert asked("audit", 1) == letters[:1]
    assert asked(most=3) == letters[:3]
    few = [row for row in letters if 2 <= int(row["properties"]["n"]) <= 3]
    assert asked(expression="n BETWEEN 2 AND 3", most=len(few) or 1) == few
    assert asked("audit", ids=frozenset((letters[1]["message_id"], "?"))) == [letters[1]]
    assert asked("audit", topic="returns") == asked("audit", until=LONG_AGO) == asked("idle") == []
    assert asked("audit", since=LONG_AGO) == letters[:2]


def test_dead_letters_are_printed_the_same_wherever_they_are_asked_for(all_of_it: Asked) -> None:
    lake, gateway, both = (rows("dlq", "list", "audit", *place) for place in all_of_it.places.values())
    assert lake == both
    assert gateway == [row | OF_LAKES for row in lake]
    assert [row["body"] for row in lake if row["body_base64"] is None]


def test_with_both_an_answer_is_of_now_and_of_years_ago(
    all_of_it: Asked, answers: dict[str, Answers]
) -> None:
    """The lake lacks what groups did, and has a broker that is gone."""
    whole = answers["lake"]
    with asked(all_of_it.gateway.address, str(all_of_it.years)) as found:
        lake, both = found["lake"], found["both"]
        assert [row["event"] for row in both.trace(Wanted(100, key="OLD"))] == ["stored"]
        assert lake.lag("", "") == []
        lag = both.lag("audit", "")
        assert [row for row in lag if row["broker"] == "broker-a"] == whole.lag("audit", "")
        of_old = [row["lag"] for row in lag if row["broker"] == "broker-old"]
        assert of_old == [None], "the group was never there"
        assert lake.dead_letters("", EVERY, 100) == []
        assert both.dead_letters("", EVERY, 100) == whole.dead_letters("", EVERY, 100)
        listed = both.messages(Wanted(100, topic="orders", tag="t0"))
        assert [row["broker"] for row in listed].count("broker-old") == 1
        assert len(listed) == 4
    place = ("--lake", str(all_of_it.years), *all_of_it.places["gateway"])
    assert run("lag", "audit", *place).stdout.count("unknown") == 3, "committed, lag and when"
    done = run("message", "old-key", "--json", *place)
    assert [row["broker"] for row in json.loads(done.stdout)] == ["broker-old"]
    assert "broker-old" in done.stderr, "whose log is not read"


def test_the_environment_says_where_to_ask(all_of_it: Asked) -> None:
    gateway = {"LAKEBROKER_GATEWAY": all_of_it.gateway.address}
    both = {"LAKEBROKER_LAKE": str(all_of_it.lake), **gateway}
    for name, environment in (("gateway", gateway), ("both", both)):
        done = run("lag", "audit", "--json", **environment)
        assert json.loads(done.stdout) == rows("lag", "audit", *all_of_it.places[name])


def test_times_are_utc_on_a_machine_elsewhere(all_of_it: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers() -> list[str]:
        return [
            run(*question, *all_of_it.places[place]).stdout
            for question, place in (
                (("message", "k0", *MINE), "lake"),
                (("message", "k0", *MINE), "gateway"),
                (("lag", "audit"), "lake"),
            )
        ]

    before = answers()
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert answers() == before
    finally:
        monkeypatch.undo()
        time.tzset()


def test_the_console_names_the_topics_that_are_listed(all_of_it: Asked) -> None:
    listed = rows("topic", "list", "--gateway", all_of_it.gateway.address)
    names = Places(Reached(all_of_it.gateway.address, "", None, None), None).names()
    assert [each.name for each in names.topics] == [row["name"] for row in listed]


def test_what_is_not_found_is_said_with_where_it_was_looked_for(all_of_it: Asked) -> None:
    lake, gateway, both = all_of_it.places.values()
    said = run("message", "k99", *lake, status=1).stderr.splitlines()[-1]
    assert said.startswith(
        f"lakebroker: no message with id or key 'k99' in any topic of the lake {all_of_it.lake}, where there are messages from 20"
    )
    said = run("trace", "k8", *MINE, *both, status=1).stderr.splitlines()[-1]
    assert said.startswith(
        f"lakebroker: no message with id or key 'k8' in topic orders of the lake {all_of_it.lake} and the logs of brokers at "
        f"{all_of_it.gateway.address}, where there are messages of it from 20"
    )
    said = run("message", "k99", *MINE, "--since", "2020-01-01", *gateway, status=1).stderr
    assert said.startswith(
        "lakebroker: no message with id or key 'k99' that was stored since 2020-01-01 in topic orders: in the log of the broker "
        f"at {all_of_it.gateway.address}, where there are messages of it from 20"
    )
    assert "the lake that a broker was started with" in said
    assert (
        "where there is no message of it" in run("message", "k0", "--topic", "none", *lake, status=1).stderr
    )
    for place in (lake, gateway):
        assert "no consumer group 'nobody'" in run("dlq", "list", "nobody", *place, status=1).stderr
    assert "group 'nobody' has settled nothing and got nothing, as far as the lake" in run("lag", "nobody", *lake, status=1).stderr  # fmt: skip
    assert "there is no consumer group 'nobody' at" in run("lag", "nobody", *gateway, status=1).stderr
    assert "group 'idle' has settled nothing" in run("lag", "idle", *gateway, status=1).stderr
    assert "add --lake LOCATION, which has an index" in run("trace", "k0", *gateway, status=2).stderr
    assert "--filter: " in run("dlq", "list", "--filter", "a >", *lake, status=2).stderr


def test_a_broker_that_is_away_leaves_what_the_lake_has(all_of_it: Asked, closed_port: str) -> None:
    place = ("--lake", str(all_of_it.lake), "--gateway", closed_port)
    done = run("message", "k0", *MINE, "--json", *place)
    assert f"no broker at {closed_port}" in done.stderr
    assert "of it there is only what the lake holds, as of" in done.stderr
    assert json.loads(done.stdout) == rows("message", "k0", *MINE, *all_of_it.places["lake"])
    done = run("message", "k0", *MINE, *place, "--strict", status=1)
    assert (done.stdout, "--strict" in done.stderr) == ("", True), done.stderr


def test_without_a_place_both_are_named(
    all_of_it: Asked, closed_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAKEBROKER_LAKE", "LAKEBROKER_GATEWAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(places, "DEFAULT_GATEWAY", closed_port)
    for question in (("message", "k"), ("trace", "k"), ("lag",), ("dlq", "list")):
        said = run(*question, status=2).stderr
        assert (
            "give --lake LOCATION (or LAKEBROKER_LAKE), --gateway HOST:PORT (or LAKEBROKER_GATEWAY)" in said
        )
    monkeypatch.setattr(places, "DEFAULT_GATEWAY", all_of_it.gateway.address)
    assert rows("lag") == rows("lag", *all_of_it.places["gateway"])


def watching(place: tuple[str, ...], errors: int | IO[str], **environment: str) -> tuple[Process, TextIO]:
    """`lag --watch`, and what it prints."""
    reader, writer = os.pipe()
    with open(writer, "w") as output:
        words = ("lag", "audit", "--watch", "100ms", "--json", *place)
        process = start(*words, stdout=output, stderr=errors, env={**os.environ, **environment})
    return process, open(reader)


@pytest.mark.parametrize("place", ["gateway", "both"])
def test_lag_is_watched_until_a_signal(all_of_it: Asked, place: str, tmp_path: Path) -> None:
    process, printed = watching(all_of_it.places[place], subprocess.DEVNULL, TMPDIR=str(tmp_path))
    with printed:
        lines = [printed.readline() for _ in range(3)]
        process.terminate()
        printed.read()
    assert process.wait(LIMIT_S) in (-signal.SIGTERM, 128 + signal.SIGTERM)
    assert [json.loads(line) for line in lines] == [rows("lag", "audit", *all_of_it.places[place])] * 3
    assert list(tmp_path.iterdir()) == [], "what the engine keeps on disk goes with it"


def test_ctrl_c_is_the_way_to_leave_a_watch(all_of_it: Asked, tmp_path: Path) -> None:
    with (tmp_path / "errors").open("w") as errors:
        process, printed = watching(all_of_it.places["lake"], errors)
    with printed:
        printed.readline()
        process.send_signal(signal.SIGINT)
        printed.read()
    assert process.wait(LIMIT_S) == 0
    assert "interrupted" not in (tmp_path / "errors").read_text()


@pytest.mark.parametrize("question", ["lag", "message"])
def test_a_topic_that_is_not_there_is_said(all_of_it: Asked, question: str) -> None:
    done = run(question, "--topic", "nowhere", *all_of_it.places["lake"])
    assert "nowhere" in done.stderr


@pytest.fixture
def closed_port() -> str:
    """Of this machine, that nobody listens on."""
    return f"127.0.0.1:{free_ports(1)[0]}"
