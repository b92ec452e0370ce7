"""A gateway whose store lost its end, with the lake that has it: a new log, consumers go on, and SQL sees each place once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.prestarted import run
from store.log.recovery import load_identity
from structured_streaming.embedded.engine import EmbeddedEngine
from tests.support.lakes.maintained import reput
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("ahead"))


class Scene:
    """What happened, once; `former` and `begun` are the identities of the store."""

    def __init__(self, folder: Path) -> None:
        self.lake = folder / "lake"
        options = {**OPTIONS, "brokerName": "broker-a", "lakeLocation": str(self.lake)}
        self.gateway = gateway = Gateway(folder, **options)
        self.received: list[bytes] = []
        with gateway:
            self.send(0, 30)
            self.receive(10)
            assert gateway.terminate() == 0
            shutil.copytree(gateway.store, folder / "older")
            gateway.start()
            self.send(30, 100)
            assert gateway.terminate() == 0
            self.reput()
            shutil.rmtree(gateway.store)
            (folder / "older").rename(gateway.store)
            self.former = identity(gateway.store)
            gateway.start()
            self.begun = identity(gateway.store)
            self.receive(100)
            self.send(100, 130)
            self.receive(130)
            gateway.kill()
            gateway.start()
            self.reput()
            self.send(130, 150)
            self.receive(150)
            self.none_is_left()
            assert gateway.terminate() == 0
        self.reput()

    def reput(self) -> None:
        reput(self.gateway.store, str(self.lake))

    def send(self, begin: int, end: int) -> None:
        client = Client(self.gateway.address)
        for number in range(begin, end):
            assert client.send("orders", b"%d" % number).status.code == pb.OK
        client.close()

    def receive(self, until: int) -> None:
        """Until so many were received in all."""
        client = Client(self.gateway.address)

        def come() -> bool:
            batch = min(until - len(self.received), 32)
            messages = client.receive("orders", "billing", batch=batch, wait_ms=5000)[1]
            if messages:
                self.received += [each.body for each in messages]
                assert client.ack("orders", "billing", *messages).status.code == pb.OK
            return len(self.received) == until

        wait_until(come, lambda: f"{until} messages, after {len(self.received)},")
        client.close()

    def none_is_left(self) -> None:
        client = Client(self.gateway.address)
        assert client.receive("orders", "billing", batch=32, wait_ms=1000)[1] == []
        client.close()

    def sql(self, statement: str) -> list[dict[str, Any]]:
        """Rows of the tables alone."""
        with EmbeddedEngine.open(str(self.lake)) as engine:
            rows: list[dict[str, Any]] = engine.query(statement).read_all().to_pylist()
            return rows


def identity(store: Path) -> Any:
    found = load_identity(store)
    assert found is not None
    return found


def lakebroker(*arguments: str) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_a_new_log_is_begun_and_told(scene: Scene) -> None:
    assert scene.begun.log_id != scene.former.log_id
    assert scene.begun.former_log_ids == (scene.former.log_id,)
    assert identity(scene.gateway.store).log_id == scene.begun.log_id, "the next starts go on with it"
    text = scene.gateway.log.read_text()
    (line,) = [line for line in text.splitlines() if "A new log is begun" in line]
    for told in (scene.former.log_id, scene.begun.log_id, str(scene.begun.own_from), "its end was lost"):
        assert told in line
    assert "Traceback" not in text


def test_consumers_receive_what_the_store_has_and_what_the_lake_alone_has(scene: Scene) -> None:
    assert sorted(map(int, scene.received)) == list(range(150)), "each once, through a kill"


def test_the_lake_has_every_record_of_both_logs_once(scene: Scene) -> None:
    (found,) = scene.sql(
        "SELECT count(*) AS n, count(DISTINCT (log_id, physical_offset)) AS keys, "
        "count(DISTINCT (topic, queue_id, queue_offset)) AS places, count(DISTINCT log_id) AS logs FROM consume_queue"
    )
    assert found["n"] == found["keys"] == found["places"]
    assert found["logs"] == 2
    rows = scene.sql("SELECT body FROM messages WHERE topic = 'orders'")
    assert sorted(int(row["body"]) for row in rows) == list(range(150))
    rows = scene.sql(f"SELECT * FROM quarantine WHERE log_id = '{scene.begun.log_id}'")
    assert rows == []


def test_the_lake_is_whole_for_the_store_that_there_is(scene: Scene) -> None:
    lakebroker("lake", "check", "--lake", str(scene.lake), "--store", str(scene.gateway.store))


def test_the_lag_is_that_of_the_newest_log(scene: Scene) -> None:
    """What was not settled of the lost end, 30 to 99, was delivered from the lake."""
    rows = scene.sql(
        "SELECT sum(lag) AS lag FROM consumer_lag WHERE consumer_group = 'billing' AND topic = 'orders'"
    )
    assert rows == [{"lag": 0}]


def test_the_stores_own_tools_see_all_of_it(scene: Scene) -> None:
    found = json.loads(lakebroker("store", "inspect", "--json", str(scene.gateway.store)))
    assert (found["min_offset"], found["log_id"]) == (0, scene.begun.log_id)
    assert found["topics"]["orders"]["records"] == 30 + 50
    found = json.loads(lakebroker("store", "verify", "--json", str(scene.gateway.store)))
    assert found["bad"] == []
