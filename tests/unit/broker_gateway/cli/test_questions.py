"""Everyday questions: how answers are printed, and what a lake answers that no broker is asked for."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from typer.testing import CliRunner

from broker_gateway.cli.gateway_calls import Reached
from broker_gateway.cli.main import app
from broker_gateway.cli.questions import brokers
from broker_gateway.cli.questions.lake import OfLake
from broker_gateway.cli.questions.letters import EVERY
from broker_gateway.cli.questions.printing import print_rows
from broker_gateway.cli.questions.rows import (
    DEAD_LETTERS,
    LAG,
    MESSAGES,
    TOTALS,
    TRACE,
    Columns,
    Row,
    message_row,
    stored_row,
    totals,
)
from broker_gateway.cli.questions.wanted import Wanted, ordered
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as pb
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as own
from lakebroker_testing.logs import HOST, LogWriter
from store.log.record import Host, offset_msg_id
from structured_streaming.embedded.engine import EmbeddedEngine
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.served import made_lake
from tests.support.lakes.staged import StagedLake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.logs.views import ViewLog

AT = datetime(2026, 11, 25, 8, 0, 0, 123_000, UTC)


def a_message(number: int, body: bytes | None = b"hello", topic: str = "orders") -> Row:
    return message_row(
        topic, "broker-a", 0, number, f"ID{number}", None, ["a", "b"], AT, body, {"KEYS": "a b", "n": "1"}
    )


def of_group(queue: int, lag: int | None, topic: str = "orders") -> Row:
    committed = None if lag is None else 5
    end = None if lag is None else 5 + lag
    return {"consumer_group": "g", "topic": topic, "broker": "broker-a", "queue_id": queue, "committed_offset": committed,
            "max_offset": end, "lag": lag, "commit_timestamp": None if lag is None else AT}  # fmt: skip


def table(capsys: pytest.CaptureFixture[str], *given: Any, **asked: Any) -> list[str]:
    print_rows(*given, as_json=False, **asked)
    return capsys.readouterr().out.splitlines()


def printed(capsys: pytest.CaptureFixture[str], *given: Any) -> list[Row]:
    print_rows(*given, as_json=True)
    found: list[Row] = json.loads(capsys.readouterr().out)
    return found


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_json_has_every_column_and_lossless_bodies(capsys: pytest.CaptureFixture[str]) -> None:
    plain, binary, omitted = printed(
        capsys, [a_message(1), a_message(2, b"\xff"), a_message(3, None)], MESSAGES
    )
    assert plain == {
        "store_timestamp": "2026-11-25T08:00:00.123Z", "topic": "orders", "broker": "broker-a", "queue_id": 0,
        "queue_offset": 1, "message_id": "ID1", "tag": None, "keys": ["a", "b"], "body_bytes": 5, "body": "hello", "body_base64": None, "properties": {"n": "1"},
    }  # fmt: skip
    assert (binary["body"], binary["body_base64"], binary["body_bytes"]) == ("\ufffd", "/w==", 1)
    assert (omitted["body"], omitted["body_base64"], omitted["body_bytes"]) == (None, None, None)
    assert printed(capsys, [], MESSAGES) == []


def test_a_table_has_what_is_the_same_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    same = table(capsys, [a_message(1), a_message(2)], MESSAGES)
    assert same[0] == "topic orders, broker broker-a"
    assert not any("broker-a" in line for line in same[1:])
    said = table(capsys, [a_message(1), a_message(2)], MESSAGES, said=["topic"])
    assert said[0] == "broker broker-a"
    different = table(capsys, [a_message(1), a_message(2, topic="returns")], MESSAGES)
    assert different[0] == "broker broker-a"
    assert "returns" in "\n".join(different[1:])


def test_a_trace_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"message_id": "0190C338C15A524EB7825A916702CAF1E0", "event_timestamp": AT, "event": "dead_lettered",
           "topic": "orders", "consumer_group": "audit", "attempt": 1, "client": "tester", "broker": "broker-a", "queue_id": 0,
           "queue_offset": 7}  # fmt: skip
    lines = table(
        capsys,
        [row | {"event": "stored", "consumer_group": None, "attempt": None, "client": None}, row],
        TRACE,
    )
    assert (
        lines[0]
        == "message_id 0190C338C15A524EB7825A916702CAF1E0, topic orders, broker broker-a, queue 0, offset 7"
    )
    assert [line.split("│")[1:3] for line in lines if "│" in line] == [
        [" 2026-11-25 08:00:00.123 ", " stored        "],
        [" 2026-11-25 08:00:00.123 ", " dead_lettered "],
    ]


def test_a_trace_over_several_topics_has_a_row_of_80_columns_for_each_event(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"message_id": "0190C338C15A524EB7825A916702CAF1E0", "event_timestamp": AT, "event": "dead_lettered",
           "topic": "orders", "consumer_group": "audit", "attempt": 2, "client": "10.0.0.7@4711@consumer", "broker": "broker-a",
           "queue_id": 0, "queue_offset": 7}  # fmt: skip
    given = [row, row | {"topic": "%DLQ%audit", "queue_offset": 3}, row | {"message_id": "1" * 34}]
    print_rows(given, TRACE, as_json=False)
    printed = capsys.readouterr()
    shown = printed.out.splitlines()
    assert shown[0] == f"message_id {row['message_id']}, broker broker-a, queue 0, on 2026-11-25"
    assert max(len(line) for line in shown if line[0] != "m") == 80
    events = [line.split("│")[1:-1] for line in shown if "│" in line]
    assert [[cell.strip() for cell in cells[:3]] for cells in events[:2]] == [
        ["08:00:00.123", "dead_lettered", "orders 7"],
        ["08:00:00.123", "dead_lettered", "%DLQ%audit 3"],
    ]
    assert events[0][3].strip().startswith("audit #2 10.0.0.7@4711")
    assert sum("1" * 34 in line for line in shown) == 1, "another message has a table of its own"


@pytest.mark.parametrize("columns", [MESSAGES, DEAD_LETTERS])
def test_ids_are_whole_in_80_columns_and_what_is_cut_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: Columns
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    of_the_letter = {"consumer_group": "g", "attempts": 3, "reason": "why", "dead_lettered_timestamp": AT}
    rows = [
        a_message(n, b"long " * 30) | of_the_letter | {"message_id": f"{n:034}", "store_timestamp": AT.replace(day=n)}
        for n in (1, 2)
    ]  # fmt: skip
    print_rows(rows, columns, as_json=False)
    printed = capsys.readouterr()
    assert max(map(len, printed.out.splitlines()[1:])) <= 80
    for row in rows:
        assert sum(row["message_id"] in line for line in printed.out.splitlines()) == 1
    assert "a wider terminal or --json does" in printed.err


def test_an_empty_answer_looks_the_same_at_every_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = set()
    for width in ("40", "80", "200"):
        monkeypatch.setenv("COLUMNS", width)
        said.add("\n".join(table(capsys, [], MESSAGES)))
    assert said == {"no messages"}


def test_what_is_not_known_is_called_so_and_what_there_is_not_is_blank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = "\n".join(table(capsys, [of_group(0, 3), of_group(1, None)], LAG))
    assert text.count("unknown") == 4  # committed, end, lag, committed_at
    text = "\n".join(table(capsys, [a_message(1, None)], MESSAGES))
    assert text.count("unknown") == 2  # size, body; a message without a tag has none
    (row,) = printed(capsys, [of_group(1, None)], LAG)
    assert (row["committed_offset"], row["max_offset"], row["lag"], row["commit_timestamp"]) == (
        None,
        None,
        None,
        None,
    )


def test_bodies_are_cut_in_a_table_unless_they_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    long = b"word " * 100
    cut = "".join(table(capsys, [a_message(1, long)], MESSAGES))
    assert cut.count("word") == 12
    assert " 500 " in cut
    whole = "".join(table(capsys, [a_message(1, long)], MESSAGES, whole=True))
    assert whole.count("word") == 100


def test_totals_leave_out_what_is_not_known_and_count_it(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [of_group(0, 3), of_group(1, None), of_group(2, 0), of_group(0, None, "returns")]
    orders, returns = printed(capsys, totals(rows), TOTALS)
    assert (orders["queues"], orders["lag"], orders["unknown"]) == (3, 3, 1)
    assert orders["commit_timestamp"] == "2026-11-25T08:00:00.123Z"
    assert (returns["queues"], returns["lag"], returns["unknown"], returns["commit_timestamp"]) == (
        1,
        None,
        1,
        None,
    )


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a store of `LogWriter.everything`, and messages without ids."""
    folder = tmp_path_factory.mktemp("lake")
    found = made_lake(folder)
    with LogWriter(folder / "more", "broker-b", store_host=Host("127.0.0.2", 10911)) as writer:
        for number in range(3):
            writer.record("plain", b"no id %d" % number, KEYS="plain")
    commit(found, manifest(found, folder / "more", *cuts(folder / "more", 1)))
    return found


@pytest.fixture(scope="module")
def of_lake(lake: Path) -> Iterator[OfLake]:
    with EmbeddedEngine.open(str(lake)) as engine:
        yield OfLake(engine, "the lake")


def test_a_message_without_an_id_is_found_by_its_place(of_lake: OfLake) -> None:
    listed = of_lake.messages(Wanted(10, topic="plain"))
    assert [row["body"] for row in listed] == [b"no id 2", b"no id 1", b"no id 0"]
    assert of_lake.messages(Wanted(10, key="plain")) == listed
    for row in listed:
        assert of_lake.messages(Wanted(10, key=row["message_id"])) == [row]
        assert of_lake.messages(Wanted(10, key=row["message_id"], topic="topic-1")) == []
        assert of_lake.trace(Wanted(10, key=row["message_id"])) == [stored_row(row)]
    assert of_lake.trace(Wanted(10, key="plain")) == ordered(map(stored_row, listed))
    assert of_lake.messages(Wanted(10, key=offset_msg_id(HOST.packed, 7))) == []
    assert of_lake.nothing_read() == ""


def test_the_id_of_its_place_finds_a_message_that_has_another(of_lake: OfLake) -> None:
    (first,) = of_lake.messages(Wanted(10, key="key0"))
    place = offset_msg_id(HOST.packed, 0)
    assert of_lake.messages(Wanted(10, key=place)) == [first]
    assert (
        of_lake.trace(Wanted(10, key=place)) == of_lake.trace(Wanted(10, key="key0")) == [stored_row(first)]
    )


def test_messages_that_no_consumer_reaches_are_not_listed(of_lake: OfLake) -> None:
    listed = of_lake.messages(Wanted(1000, topic="topic-0"))
    assert len(listed) == 101
    assert {row["message_id"] for row in listed} >= {"GZIP"}
    assert "ROLLBACK" not in {row["message_id"] for row in listed}
    assert of_lake.messages(Wanted(10, key="GZIP"))[0]["body"] == b"packed"


def test_the_newest_come_first_and_no_more_than_are_wanted(of_lake: OfLake) -> None:
    many = of_lake.messages(Wanted(1000, key="shared"))
    assert len(many) == 300
    assert many == sorted(many, key=lambda row: row["store_timestamp"], reverse=True)
    assert of_lake.messages(Wanted(7, key="shared")) == many[:7]
    tagged = of_lake.messages(Wanted(1000, topic="topic-1", tag="tag0", queue=2))
    assert tagged == [row for row in many if (row["topic"], row["tag"], row["queue_id"]) == ("topic-1", "tag0", 2)]  # fmt: skip
    assert tagged
    middle = many[150]["store_timestamp"]
    older = of_lake.messages(Wanted(1000, key="shared", until=middle))
    assert older == [row for row in many if row["store_timestamp"] <= middle]
    assert of_lake.messages(Wanted(1000, key="shared", since=middle)) == [row for row in many if row["store_timestamp"] >= middle]  # fmt: skip


def test_dead_letters_of_lakebroker_and_of_a_real_broker_are_those_of_the_view(tmp_path: Path) -> None:
    log = ViewLog()
    log.put("%DLQ%g", 10, body=b"ours", UNIQ_KEY="A", LB_ORIGIN="1:7:3:1:gorders", LB_REASON="because", n="1")
    log.put("%DLQ%g", 20, body=b"theirs", reconsume_times=16, UNIQ_KEY="B", RETRY_TOPIC="orders", KEYS="k", n="2",
            ORIGIN_MESSAGE_ID="BEFORE")  # fmt: skip
    log.put("%DLQ%h", 30, body=b"bare")
    StagedLake(tmp_path / "lake").take(bytes(log.data))
    with EmbeddedEngine.open(str(tmp_path / "lake")) as engine:
        answers = OfLake(engine, "the lake")
        found = answers.dead_letters("", EVERY, 10)
        view = (
            engine.query("SELECT * FROM dead_letters ORDER BY dead_lettered_timestamp").read_all().to_pylist()
        )
        of_view = {*DEAD_LETTERS.shown, "origin_message_id"} - {"body_bytes"}
        assert of_view < set(view[0])
        assert [{name: row[name] for name in of_view} for row in found] == [
            {name: row[name] or ([] if name == "keys" else row[name]) for name in of_view} for row in view
        ]
        assert [(row["consumer_group"], row["topic"], row["attempts"], row["reason"]) for row in found] == [
            ("g", "orders", 3, "because"), ("g", "orders", 16, None), ("h", None, None, None),
        ]  # fmt: skip
        ids = [(row["message_id"], row["origin_message_id"]) for row in found[:2]]
        assert ids == [("A", None), ("B", "BEFORE")]
        places = ("queue_id", "queue_offset", "dlq_queue_id", "dlq_queue_offset")
        assert [tuple(row[name] for name in places) for row in found[:2]] == [
            (1, 7, 0, 0),
            (None, None, 0, 1),
        ]
        assert answers.dead_letters("g", EVERY, 1) == found[:1]
        assert answers.dead_letters("g", EVERY._replace(expression="n > 1"), 1) == found[1:2]
        assert answers.dead_letters("", EVERY._replace(topic="orders"), 10) == found[:2]
        for either in ("B", "BEFORE"):
            assert answers.dead_letters("", EVERY._replace(ids=frozenset((either, "?"))), 10) == found[1:2]
        late = found[1]["dead_lettered_timestamp"]
        assert answers.dead_letters("", EVERY._replace(since=late), 10) == found[1:]
        assert answers.dead_letters("", EVERY._replace(until=late), 10) == found[:1]


@pytest.mark.parametrize("most", [4, None])
@pytest.mark.parametrize("encoding", [definition_pb2.IDENTITY, definition_pb2.GZIP])
def test_a_body_that_is_cut_says_how_long_it_is(
    wrong_gateway: str,
    monkeypatch: pytest.MonkeyPatch,
    encoding: definition_pb2.Encoding.ValueType,
    most: int | None,
) -> None:
    body = b"x" * 100_000
    given = definition_pb2.Message(body=zlib.compress(body) if encoding == definition_pb2.GZIP else body)
    given.system_properties.body_encoding = encoding
    monkeypatch.setitem(ANSWERS, "PullMessage", pb.PullMessageResponse(message=given))
    (row,) = brokers.OfBrokers(Reached(wrong_gateway, "", None, None), most).dead_letters("g", EVERY, 10)
    assert (row["body"], row["body_bytes"]) == (body[:most], 100_000)


@pytest.fixture
def wrong_gateway() -> Iterator[str]:
    """The address of one whose times have no date."""

    class Handler(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            answer = ANSWERS[details.method.rpartition("/")[2]]
            if details.method.endswith("PullMessage"):
                parts = (pb.PullMessageResponse(status=OK), pb.PullMessageResponse(next_offset=1), answer)
                return grpc.unary_stream_rpc_method_handler(
                    lambda request, context: (each.SerializeToString() for each in parts)
                )
            if details.method.endswith("QueryOffset"):
                answer = pb.QueryOffsetResponse(status=OK, offset=next(begin_and_end))
            return grpc.unary_unary_rpc_method_handler(lambda request, context: answer.SerializeToString())

    begin_and_end = itertools.count()
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


FAR = definition_pb2.Message(system_properties=definition_pb2.SystemProperties(message_id="m"))
FAR.system_properties.store_timestamp.seconds = 10**17
OK = definition_pb2.Status(code=definition_pb2.OK)
ANSWERS: dict[str, Message] = {
    "QueryMessage": rpc.ListMessageResponse(status=OK, messages=[FAR]),
    "DescribeTopicStatus": rpc.DescribeTopicStatusResponse(status=OK),
    "ListGroups": own.ListGroupsResponse(groups=[own.Group(name="g")]),
    "ListTopics": own.ListTopicsResponse(topics=[own.Topic(name="%DLQ%g", queues=1)]),
    "QueryOffset": pb.QueryOffsetResponse(),
    "PullMessage": pb.PullMessageResponse(message=FAR),
    "QueryTimeSpan": rpc.QueryTimeSpanResponse(
        status=OK, queue_time_span_list=[rpc.QueryTimeSpanResponse.QueueTimeSpan(min_timestamp=1 << 62)]
    ),
}


@pytest.mark.parametrize(
    "question",
    [
        ("message", "m", "--topic", "t"),
        ("trace", "m", "--topic", "t"),
        ("dlq", "list"),
        ("message", "none", "--topic", "t"),
    ],
)
def test_a_time_without_a_date_is_an_error_in_a_sentence(
    question: tuple[str, ...], wrong_gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "none" in question:
        monkeypatch.setitem(ANSWERS, "QueryMessage", rpc.ListMessageResponse(status=OK))
    done = CliRunner().invoke(app, [*question, "--gateway", wrong_gateway])
    assert (done.exit_code, done.stdout) == (1, ""), done.exception
    assert done.stderr.startswith("lakebroker: the gateway answers a time that has no date: ")


@pytest.mark.parametrize(
    "question",
    [
        ("message",),
        ("trace",),
        ("lag",),
        ("dlq", "list"),
        ("message", "k", "--topic"),
        ("dlq", "list", "--id"),
    ],
)
def test_what_is_no_text_is_refused(question: tuple[str, ...], tmp_path: Path) -> None:
    empty_lake(str(tmp_path / "lake"))
    done = CliRunner().invoke(app, [*question, "a\udcff", "--lake", str(tmp_path / "lake")])
    assert (done.exit_code, done.stderr) == (
        2,
        "lakebroker: 'a\\udcff' is no UTF-8 text; topics, groups, keys and ids are\n",
    ), done.exception


def test_a_lake_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    def said(*arguments: str) -> tuple[int, str]:
        done = CliRunner(env={"LAKEBROKER_GATEWAY": "", "LAKEBROKER_LAKE": ""}).invoke(app, arguments)
        return done.exit_code, done.stderr

    missing = tmp_path / "missing"
    status, text = said("lag", "--lake", str(missing))
    assert (status, str(missing) in text) == (1, True)
    assert said("trace", "k", "--lake", "main.lake") == (
        2,
        "lakebroker: --lake main.lake is a schema of a catalog, which Spark alone reads: give the folder of its tables\n",
    )
    empty_lake(str(tmp_path / "empty"))
    status, text = said("message", "k", "--lake", str(tmp_path / "empty"))
    assert (status, text.splitlines()[-1]) == (
        1,
        f"lakebroker: no message with id or key 'k' in any topic of the lake {tmp_path}/empty, where there is no message",
    )
    assert said("message", "--lake", str(tmp_path / "empty"))[0] == 2, (
        "all messages of all topics are too many"
    )
    nothing = f"lakebroker: the lake {tmp_path}/empty holds no batch yet; run `lakebroker reput`"
    for question in (("lag",), ("dlq", "list")):
        assert said(*question, "--lake", str(tmp_path / "empty")) == (0, f"{nothing}\n")
    assert said("lag", "g", "--lake", str(tmp_path / "empty"))[1].splitlines()[0] == nothing
    assert said("lag", "--watch", "0s")[0] == 2
    status, text = said("lag", "--lake", str(tmp_path / "empty"), "--gateway", "localhost")
    assert (status, text.startswith("lakebroker: --gateway: ")) == (2, True)


def test_a_queue_that_is_empty_and_was_read_has_no_lag_at_a_gateway() -> None:
    """As in Kafka, where the committed offset is the end offset; a queue on which nothing was committed is none of the group's."""
    empty = own.QueueOffsets(topic="orders", queue=0, end=0, committed=0)
    never = own.QueueOffsets(topic="orders", queue=1, end=0)
    unread = own.QueueOffsets(topic="orders", queue=2, end=7)
    answer = own.ListOffsetsResponse(queues=[empty, never, unread])
    calls: Any = SimpleNamespace(
        address="b",
        admin=lambda *_: answer,
        public=lambda *_, **_named: rpc.DescribeTopicStatusResponse(),
    )
    rows = brokers.OfBrokers(Reached("b", "", None, None)).lag_at(calls, "g", "")
    assert [(row["queue_id"], row["committed_offset"], row["max_offset"], row["lag"]) for row in rows] == [
        (0, 0, 0, 0),
        (2, None, 7, None),
    ]
