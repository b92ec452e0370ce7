"""What the console is answered by a lake alone, and what it says when nobody answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from broker_gateway.cli.console import lake_engine
from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Names
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.text import BODY
from broker_gateway.cli.gateway_calls import Reached
from structured_streaming.lake import create_tables
from tests import example_lake
from tests.lake_broker import LakeBroker

NOBODY = Reached("127.0.0.1:1", "", None, None)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with LakeBroker(tmp_path_factory.mktemp("asked")) as broker:
        broker.create_topic("orders", 1)
        broker.create_group("billing")
        broker.send("orders", b"x" * (BODY + 5), keys=["order-1"])
        broker.send("orders", b"two", keys=["order-2"])
        _, received = broker.receive("orders", "billing")
        broker.ack("orders", "billing", received[0])
        broker.dead_letter("orders", "billing", received[1], 1)
        broker.send("orders", b"three")
        broker.dispatch()
        engine = LakeEngine(str(broker.lake), {})
        yield Places(None, engine)
        engine.close()


def test_a_lake_alone_names_topics_and_groups_with_their_lag(places: Places) -> None:
    names = places.names()
    assert [(each.name, each.queues) for each in names.topics] == [("orders", 1)]
    assert [(each.name, each.fifo) for each in names.groups] == [("billing", None)]
    assert names.dead == ("billing",)
    (row,) = places.lag(["billing", "nobody"], names)
    assert (row["consumer_group"], row["topic"], row["queues"], row["lag"]) == ("billing", "orders", 1, 1)
    assert [each["lag"] for each in places.lag_of("billing") if each["topic"] == "orders"] == [1]
    at, lag = places.lag_by_minute("billing")["orders"][-1]
    stored = places.found("order-2", "").messages[0]["store_timestamp"]
    assert lag == 1
    assert stored.timestamp() * 1000 < at, "what was so at the end of a minute is not shown at its start"
    status = places.topic_status(["orders", "nothing"])
    assert {topic: each.messages for topic, each in status.items()} == {"orders": 3}
    (fresh,) = places.freshness()
    assert (fresh.broker, fresh.batch, fresh.behind_bytes) == ("broker-a", 1, 0)
    assert places.brokers() == places.tasks() == ()


def test_lag_of_a_minute_counts_queues_that_did_not_move_in_it(tmp_path: Path) -> None:
    engine = LakeEngine(str(example_lake.make(tmp_path / "lake")), {})
    places = Places(None, engine)
    moved = engine.rows("SELECT * FROM consumer_lag_by_minute WHERE consumer_group = 'billing'", {})
    expected: dict[str, list[tuple[int, int]]] = {}
    for topic in {row["topic"] for row in moved}:
        of_topic = [row for row in moved if row["topic"] == topic]
        for minute in sorted({row["minute"] for row in of_topic}):
            before = sorted(
                (row for row in of_topic if row["minute"] <= minute), key=lambda row: row["minute"]
            )
            last = {(row["broker"], row["queue_id"]): row["lag"] or 0 for row in before}
            at = int(minute.timestamp() * 1000) + 60_000
            expected.setdefault(topic, []).append((at, sum(last.values())))
    idle = Counter(row["minute"] for row in moved if row["topic"] == "orders")
    assert min(idle.values()) < max(idle.values()), "there is a minute in which not every queue moved"
    assert places.lag_by_minute("billing") == expected
    engine.close()


def test_a_message_is_found_with_its_trace_and_as_much_of_its_body_as_is_shown(places: Places) -> None:
    found = places.found("order-1", "")
    (message,) = found.messages
    assert (message["topic"], message["body_bytes"], len(message["body"])) == ("orders", BODY + 5, BODY)
    assert [event["event"] for event in found.trace] == ["stored", "delivered", "acked"]
    assert any("as of" in said for said in found.said)
    nothing = places.found("nobody", "")
    assert nothing.messages == ()
    assert any(said.startswith("no message in any topic of lake") for said in nothing.said)


def test_dead_letters_say_where_they_were(places: Places) -> None:
    (letter,) = places.dead_letters("billing")
    assert (letter["topic"], letter["keys"], letter["attempts"]) == ("orders", ["order-2"], 1)
    with pytest.raises(AskError, match="no consumer group 'nobody'"):
        places.dead_letters("nobody")


def test_a_gateway_that_is_away_is_said_by_each_question_and_by_its_row(
    capfd: pytest.CaptureFixture[str],
) -> None:
    away = Places(NOBODY, None)
    (broker,) = away.brokers()
    assert "no gateway at 127.0.0.1:1: connection refused" in broker.error
    for question in (away.tasks, away.names, lambda: away.dead_letters("g"), lambda: away.lag_of("g")):
        with pytest.raises(AskError, match=r"no gateway at 127\.0\.0\.1:1: connection refused"):
            question()
    assert away.lag(["g"], Names()) == []
    with pytest.raises(AskError, match="--topic is missing"):
        away.found("key", "")
    assert capfd.readouterr() == ("", ""), "nothing is printed"


def test_a_lake_that_cannot_be_opened_is_said_and_tried_again_a_while_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(lake_engine, "time", SimpleNamespace(monotonic=lambda: now))
    engine = LakeEngine(str(tmp_path / "later"), {})
    with pytest.raises(AskError, match="later"):
        engine.rows("SELECT 1")
    create_tables(str(tmp_path / "later"))
    now += lake_engine.AGAIN_S / 2
    with pytest.raises(AskError, match="later"):
        engine.rows("SELECT 1")
    now += lake_engine.AGAIN_S
    assert engine.rows("SELECT 1 AS one") == [{"one": 1}]
    engine.close()
