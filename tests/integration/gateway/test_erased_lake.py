"""`lakebroker erase` at a running broker and its lake: nobody gets the messages, and no file of the lake has anything of them, whatever
the reput has taken by then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.maintenance.check import check_lake
from structured_streaming.maintenance.maintain import maintain
from tests.support.lakes.maintained import reput
from tests.support.lakes.marked import found_in

TOPIC, GROUP = "people", "g"


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    options = {**OPTIONS, "defaultTopicQueueNums": "1", "flushDiskType": "SYNC_FLUSH"}
    with Gateway(tmp_path / "gateway", **options) as made:
        yield made


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    made = Client(gateway.address)
    yield made
    made.close()


class People:
    """Messages of a person, whose bodies and keys hold a marker, and of others; and the lake."""

    def __init__(self, gateway: Gateway, client: Client, lake: Path) -> None:
        self.gateway, self.client, self.lake = gateway, client, lake
        self.marker = f"Mk{uuid4().hex[:14]}"
        self.ids: list[str] = []
        self.number = 0

    def send(self, count: int) -> None:
        """So many of the person, and of others."""
        for _ in range(count):
            self.number += 1
            answer = self.client.send(
                TOPIC, f"{self.marker} {self.number}".encode(), keys=[f"{self.marker}-key", f"n{self.number}"]
            )
            assert answer.status.code == pb.OK
            self.ids.append(answer.entries[0].message_id)
            self.client.send(TOPIC, b"other %d" % self.number, keys=[f"o{self.number}"])

    def receive(self, count: int, *, acks: bool = True) -> list[bytes]:
        """So many bodies, or fewer."""
        found: list[bytes] = []
        while len(found) < count and (some := self.client.receive(TOPIC, GROUP, batch=count - len(found))[1]):
            if acks:
                self.client.ack(TOPIC, GROUP, *some)
            found += [each.body for each in some]
        return found

    def reput(self) -> None:
        reput(self.gateway.store, str(self.lake))

    def erase(self, *arguments: str) -> dict[str, Any]:
        where = ("--lake", str(self.lake), "--gateway", self.gateway.address, "--json")
        result = CliRunner().invoke(
            app, ("erase", *where, "--topic", TOPIC, "--key", f"{self.marker}-key", *arguments)
        )
        assert result.exit_code == 0, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    def found(self) -> list[str]:
        """Files of the lake with anything of them."""
        return [each for text in (self.marker, *self.ids) for each in found_in(self.lake, text)]

    def sql(self) -> list[bytes]:
        """Bodies in lake and log."""
        with EmbeddedEngine.open(str(self.lake), source={"brokers": self.gateway.address}) as engine:
            rows = engine.query(f"SELECT body FROM messages WHERE topic = '{TOPIC}' ORDER BY queue_offset")
            return list(rows.read_all()["body"].to_pylist())


@pytest.fixture
def people(gateway: Gateway, client: Client, tmp_path: Path) -> People:
    return People(gateway, client, tmp_path / "lake")


def others(first: int, last: int) -> list[bytes]:
    return [b"other %d" % number for number in range(first, last + 1)]


def test_nobody_gets_them_and_no_file_of_the_lake_has_anything_of_them(people: People) -> None:
    people.send(4)
    assert len(people.receive(4)) == 4
    people.reput()
    people.send(2)  # which only the log has
    assert len(people.found()) > 10
    would = people.erase("--dry-run")
    assert (would["records"], would["kept_by_brokers"][0]["records"]) == (6, 6)
    done = people.erase("--yes")
    assert (done["records"], done["new_at_brokers"], done["ahead"]) == (6, 6, 2)
    assert done["topics"] == {TOPIC: 4}
    assert [each["records"] for each in done["kept_by_brokers"]] == [6]
    assert done["brokers_told"] == [people.gateway.address]
    assert people.sql() == others(1, 6)
    people.reput()
    assert people.sql() == others(1, 6)
    assert people.receive(20) == others(3, 6)
    people.reput()  # with deliveries of before, and what the journal says is erased
    again = people.erase("--yes")
    assert (again["records"], again["new_at_brokers"], again["ahead"], again["settled"]) == (6, 0, 0, True)
    assert people.found() == []
    assert [report.problems for report in maintain(str(people.lake)) if report.problems] == []
    assert people.found() == []
    problems = [
        each for found in check_lake(str(people.lake), [str(people.gateway.store)]) for each in found.problems
    ]
    assert problems == []


def test_a_lake_that_is_made_anew_has_nothing_of_them(people: People, tmp_path: Path) -> None:
    people.send(3)
    people.reput()
    people.erase("--yes")
    people.lake = tmp_path / "anew"
    people.reput()
    assert [each for each in people.found() if not each.startswith("delivery_events")] == []
    assert people.sql() == others(1, 3)
    assert [report.problems for report in maintain(str(people.lake)) if report.problems] == []
    assert people.erase("--yes")["settled"]
    assert people.found() == []
