"""What the console is answered by a lake alone, and what it says when nobody answers."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message

from broker_gateway.cli.console import asking, lake_engine
from broker_gateway.cli.console.asking import Places
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import Names
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.text import BODY, EXCERPT
from broker_gateway.cli.gateway_calls import Reached
from broker_gateway.cli.questions import lake
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as own
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import LocationError
from tests.support.brokers.with_lake import LakeBroker
from tests.support.lakes import example as example_lake
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.staged import StagedLake
from tests.support.logs.views import BEGIN_MS, MINUTE, ViewLog, settled
from tests.support.waiting import LIMIT_S

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
    assert [each["lag"] for each in places.lag_of("billing").rows if each["topic"] == "orders"] == [1]
    at, lag = places.lag_by_minute("billing")["orders"][-1]
    stored = places.found("order-2", "").stories[0].messages[0]["store_timestamp"]
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


def test_lag_by_minute_is_of_the_last_day_and_counts_what_was_before_it(tmp_path: Path) -> None:
    day = 24 * 60 * MINUTE
    log = ViewLog()
    for at, queue_id in ((0, 0), (1, 0), (2, 1), (MINUTE, 0), (day + 2 * MINUTE, 0), (day + 3 * MINUTE, 0)):
        log.put("orders", at, queue_id)
    log.put("idle", 5)
    log.journal(10, settled("billing", "orders", 0, 0), settled("billing", "orders", 1, 0))
    log.journal(11, settled("billing", "idle", 0, 0))
    StagedLake(tmp_path / "lake").take(bytes(log.data))
    engine = LakeEngine(str(tmp_path / "lake"), {})
    begin = BEGIN_MS + 3 * MINUTE + MINUTE
    assert Places(None, engine).lag_by_minute("billing") == {
        "orders": [(begin, 4), (begin + day - MINUTE, 5), (begin + day, 6)],
        "idle": [(begin, 1)],
    }
    engine.close()


def test_a_lake_names_what_is_configured_and_of_brokers_that_write_down_no_topics_what_has_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = LakeEngine(str(example_lake.make(tmp_path / "lake")), {})
    places, asked = Places(None, engine), list[str]()
    rows = engine.rows

    def noted(statement: str, given: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        asked.append(statement)
        return rows(statement, given)

    monkeypatch.setattr(engine, "rows", noted)
    assert {each.name: each.queues for each in places.names().topics} == {
        "orders": 2,
        "payments": 2,
        "reminders": 2,
        "shipments": 1,
    }
    (scanned,) = (each for each in asked if "consume_queue" in each)
    assert "WHERE broker IN ($v0)" in scanned
    engine.close()


def test_a_lake_of_brokers_that_write_down_their_topics_is_not_scanned_for_names(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert places.lake is not None
    rows, asked = places.lake.rows, list[str]()

    def noted(statement: str, given: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        asked.append(statement)
        return rows(statement, given)

    monkeypatch.setattr(places.lake, "rows", noted)
    assert places.names().dead == ("billing",)
    assert [each for each in asked if "consume_queue" in each or "consumer_offsets" in each] == []


def test_what_the_lake_tells_of_a_look_up_is_heard_by_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_engine, tells = EmbeddedEngine.open, list[Callable[[str], None]]()

    def opened(*given: Any, tell: Callable[[str], None], **named: Any) -> EmbeddedEngine:
        tells.append(tell)
        return open_engine(*given, tell=tell, **named)

    monkeypatch.setattr(EmbeddedEngine, "open", opened)
    engine = LakeEngine(str(empty_lake(str(tmp_path)).path), {})
    engine.rows("SELECT 1")
    (tell,) = tells
    for number in range(30):
        tell(f"of a poll: {number}")
    with engine.hearing() as said:
        tell("broker-b does not answer")
        tell("broker-b does not answer")
        with engine.hearing() as other:
            tell("of another")
    engine.close()
    assert (said, other) == (["broker-b does not answer"], ["of another"])


def test_names_come_without_a_call_that_the_gateway_is_too_old_for() -> None:
    answers: dict[str, Message] = {
        "ListTopics": own.ListTopicsResponse(
            topics=[own.Topic(name="orders", queues=4), own.Topic(name="%DLQ%billing", queues=1)]
        ),
        "ListGroups": own.ListGroupsResponse(groups=[own.Group(name="billing", retry_max_times=16)]),
        "GetProxyRuntimeStats": public.GetProxyRuntimeStatsResponse(
            status=pb.Status(code=pb.OK), in_tps=2.0, connections=3
        ),
    }

    class Older(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
            answer = answers.get(call.method.rpartition("/")[2])
            if answer is None:
                return None
            return grpc.unary_unary_rpc_method_handler(lambda _, __: answer.SerializeToString())

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Older()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        places = Places(Reached(f"127.0.0.1:{port}", "", None, None), None)
        names, (broker,) = places.names(), places.brokers()
    finally:
        server.stop(None).wait()
    assert [(each.name, each.queues) for each in names.topics] == [("orders", 4)]
    assert [each.name for each in names.groups] == ["billing"]
    assert names.dead == ("billing",)
    assert (broker.earlier, broker.error, broker.in_rate, broker.connections) == (True, "", 2.0, 3)


def test_a_message_is_found_with_its_trace_and_as_much_of_its_body_as_is_shown(places: Places) -> None:
    found = places.found("order-1", "")
    (story,) = found.stories
    (message,) = story.messages
    assert (message["topic"], message["body_bytes"], len(message["body"])) == ("orders", BODY + 5, BODY)
    assert [event["event"] for event in story.trace] == ["stored", "delivered", "acked"]
    assert any("as of" in said for said in found.said)
    nothing = places.found("nobody", "")
    assert nothing.stories == ()
    assert any(said.startswith("no message in any topic of lake") for said in nothing.said)


def test_dead_letters_say_where_they_were(places: Places) -> None:
    (letter,) = places.dead_letters("billing").rows
    assert (letter["body"], letter["body_bytes"]) == (b"two", 3)
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


def test_a_lake_that_is_made_anew_at_its_place_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(lake_engine, "time", SimpleNamespace(monotonic=lambda: now))
    place = example_lake.make(tmp_path / "lake")
    engine = LakeEngine(str(place), {})
    batches = "SELECT count(*) AS batches FROM reput_progress"
    assert engine.rows(batches)[0]["batches"] > 0
    shutil.rmtree(place)
    empty_lake(str(place))
    now += lake_engine.LOOKED_S
    assert engine.rows(batches) == [{"batches": 0}]

    def ask_while_it_goes() -> None:
        nonlocal now
        with engine.asked() as under_way:
            shutil.rmtree(place)
            now += lake_engine.LOOKED_S
            with pytest.raises(AskError, match="no lake yet at"):
                engine.rows(batches)
            under_way.age()

    with pytest.raises(AskError, match="the lake was removed meanwhile: ask again"):
        ask_while_it_goes()
    engine.close()


def test_the_newest_messages_of_a_topic_are_found_without_those_before(places: Places) -> None:
    found = places.newest("orders")
    assert [row["body"][:5] for row in found.rows] == [b"three", b"two", b"xxxxx"]
    assert [len(row["body"]) for row in found.rows] == [5, 3, EXCERPT]
    assert places.newest("nothing").rows == ()


def test_newest_messages_are_looked_for_from_the_logs_end_until_there_are_enough(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = places.newest("orders").rows
    monkeypatch.setattr(lake, "_WINDOWS", (1, BODY))
    assert places.newest("orders").rows == whole
    monkeypatch.setattr(asking, "MOST_MESSAGES", 2)
    assert places.newest("orders").rows == whole[:2]


def test_a_message_that_was_given_up_is_one_with_its_dead_letter_and_its_trace(places: Places) -> None:
    (story,) = places.found("order-2", "").stories
    assert [row["topic"] for row in story.messages] == ["orders"]
    assert [row["topic"] for row in story.copies] == ["%DLQ%billing"]
    assert [event["event"] for event in story.trace].count("dead_lettered") == 1


def test_a_lake_that_cannot_be_opened_is_said_and_tried_again_a_while_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(lake_engine, "time", SimpleNamespace(monotonic=lambda: now))
    engine = LakeEngine(str(tmp_path / "later"), {})
    with pytest.raises(AskError, match=r"no lake yet at .*later"):
        engine.rows("SELECT 1")
    empty_lake(str(tmp_path / "later"))
    now += lake_engine.AGAIN_S / 2
    with pytest.raises(AskError, match="later"):
        engine.rows("SELECT 1")
    now += lake_engine.AGAIN_S
    assert engine.rows("SELECT 1 AS one") == [{"one": 1}]
    engine.close()


def test_a_look_at_the_lake_that_fails_ends_no_statement_and_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(lake_engine, "time", SimpleNamespace(monotonic=lambda: now))
    engine = LakeEngine(str(example_lake.make(tmp_path / "lake")), {})
    looking, go, looks = threading.Event(), threading.Event(), list[str]()

    def slow(folder: object) -> tuple[str, int]:
        looks.append(str(folder))
        looking.set()
        assert go.wait(LIMIT_S)
        raise LocationError("the object store does not answer")

    with engine.asked() as under_way, ThreadPoolExecutor(1) as other:
        monkeypatch.setattr("structured_streaming.lake.identity", slow)
        now += lake_engine.LOOKED_S
        looker = other.submit(engine.rows, "SELECT 1 AS one")
        assert looking.wait(LIMIT_S)
        try:
            assert engine.rows("SELECT 2 AS two") == [{"two": 2}], "while another thread looks"
        finally:
            go.set()
        assert looker.result(60) == [{"one": 1}]
        assert under_way.query("SELECT 3 AS three").read_all().to_pylist() == [{"three": 3}]
        assert len(looks) == 1, "and it is not looked again at once"
    engine.close()
