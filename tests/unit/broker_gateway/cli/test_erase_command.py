"""`lakebroker erase` of a lake: what it refuses, says and leaves, with no broker, or one that answers what it likes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner, Result

from broker_gateway.cli import erase_command, gateway_calls
from broker_gateway.cli.main import app
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.logs import LogWriter
from structured_streaming.maintenance import erasure
from structured_streaming.maintenance.maintain import maintain
from tests.support.lakes.marked import TOPIC, MarkedLake


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ("erase", *arguments))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> MarkedLake:
    made = MarkedLake(tmp_path_factory.mktemp("marked"))
    made.write(2)
    return made


@pytest.fixture
def lake(whole: MarkedLake, tmp_path: Path) -> MarkedLake:
    return whole.copied(tmp_path / "copy")


def by_key(lake: MarkedLake) -> tuple[str, ...]:
    return ("--lake", lake.location, "--topic", TOPIC, "--key", lake.key)


def answer(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_key_is_erased_and_a_second_call_says_that_nothing_is_left(lake: MarkedLake) -> None:
    said = answer(run(*by_key(lake), "--yes", "--json"))
    assert said["records"] == 6
    assert said["topics"] == {TOPIC: 2, "%RETRY%g": 2, "rmq_sys_wheel_timer": 2}
    rows = {each["table"]: each["rows"] for each in said["tables"]}
    assert rows == {"delivery_events": 2, "consume_queue": 4, "message_index": 24, "messages": 6}
    assert (said["settled"], said["ahead"], said["brokers_told"], said["problems"]) == (True, 0, [], [])
    assert "backups" in said["not_covered"][0]
    assert lake.found() == []
    again = answer(run(*by_key(lake), "--yes", "--json"))
    assert (again["records"], again["tables"], again["settled"]) == (0, [], True)
    text = run(*by_key(lake), "--yes")
    assert text.exit_code == 0
    assert "the lake holds nothing of them" in text.output
    assert "no broker was told: give --gateway or --namesrv" in text.output


def test_an_id_is_enough(lake: MarkedLake) -> None:
    said = answer(run("--lake", lake.location, "--id", f"{lake.marker}ID1", "--yes", "--json"))
    assert said["records"] == 3
    left = lake.table("messages")["message_id"].to_pylist()
    assert f"{lake.marker}ID1" not in left
    assert f"{lake.marker}ID0" in left


def test_a_dry_run_says_the_same_and_changes_nothing(lake: MarkedLake) -> None:
    before = sorted(path for path in lake.lake.rglob("*"))
    would = answer(run(*by_key(lake), "--dry-run", "--json"))
    assert sorted(path for path in lake.lake.rglob("*")) == before
    text = run(*by_key(lake), "--dry-run")
    assert f"6 records of key {lake.key} would be erased" in text.output
    done = answer(run(*by_key(lake), "--yes", "--json"))
    for name in ("records", "topics"):
        assert would[name] == done[name]
    assert [(each["table"], each["rows"], each["files"]) for each in would["tables"]] == [
        (each["table"], each["rows"], each["files"]) for each in done["tables"]
    ]


def test_what_is_wrong_is_refused_with_the_remedy(lake: MarkedLake) -> None:
    where = ("--lake", lake.location)
    for arguments, status, said in (
        ((*where,), 2, "give --key with --topic, or --id"),
        ((*where, "--key", "a"), 2, "give it with --topic"),
        ((*where, "--topic", "t", "--key", " "), 2, "fits nothing"),
        ((*where, "--id", "a", "--gateway", "h:1", "--namesrv", "h:2"), 2, "give one of them"),
        (
            (*where, "--id", "a"),
            2,
            f"0 records of id a in {lake.location} would be erased for good: add --yes",
        ),
        (("--lake", "spark_catalog.lake", "--id", "a"), 1, "VACUUM each table"),
        (("--lake", str(lake.store), "--id", "a"), 1, "is no lake"),
        ((*where, "--id", "a", "--gateway", "127.0.0.1:1", "--yes"), 1, "no gateway at 127.0.0.1:1"),
    ):
        result = run(*arguments)
        assert result.exit_code == status, result.output
        assert said in " ".join(result.output.split()), result.output
    assert len(lake.found()) > 10, "nothing was erased"


def test_a_broker_that_is_away_ends_it_before_anything_is_removed(lake: MarkedLake) -> None:
    before = lake.others()
    result = run(*by_key(lake), "--gateway", "127.0.0.1:1", "--yes")
    assert result.exit_code == 1
    assert lake.table("erasures").num_rows == 0
    assert lake.others() == before


def test_what_a_table_keeps_is_a_problem_with_status_1(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = erasure.MaintainedTable.replace

    def refuse(table: Any, *arguments: Any, **named: Any) -> bool:
        if table.table.name == "message_index":
            raise OSError("disk full")
        return real(table, *arguments, **named)

    monkeypatch.setattr(erasure.MaintainedTable, "replace", refuse)
    result = run(*by_key(lake), "--yes", "--json")
    assert result.exit_code == 1
    assert "disk full" in result.output
    monkeypatch.undo()
    assert run(*by_key(lake), "--yes").exit_code == 0
    assert lake.found() == []


class Answers(grpc.GenericRpcHandler):
    """Of whoever is at `--gateway`."""

    def __init__(self, answer: Callable[[pb.EraseRequest], pb.EraseResponse]) -> None:
        self.requests: list[pb.EraseRequest] = []
        self._answer = answer

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        def call(data: bytes, context: object) -> bytes:
            self.requests.append(pb.EraseRequest.FromString(data))
            answer: bytes = self._answer(self.requests[-1]).SerializeToString()
            return answer

        return grpc.unary_unary_rpc_method_handler(call)


@contextmanager
def answering(
    answer: Callable[[pb.EraseRequest], pb.EraseResponse],
) -> Iterator[tuple[str, list[pb.EraseRequest]]]:
    """The address, and what it was asked."""
    handler = Answers(answer)
    server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}", handler.requests
    finally:
        server.stop(None).wait()


def answered(lake: MarkedLake, records: Sequence[pb.ErasedRecord], **more: Any) -> pb.EraseResponse:
    row = lake.table("messages").slice(0, 1).to_pylist()[0]
    return pb.EraseResponse(broker=row["broker"], log_id=row["log_id"], records=records, **more)


def test_a_gateway_that_names_messages_of_others_removes_nothing(lake: MarkedLake) -> None:
    rows = [row for row in lake.table("messages").to_pylist() if lake.marker not in repr(row)]
    places = [pb.ErasedRecord(physical_offset=row["physical_offset"]) for row in rows]
    before = lake.table("messages").num_rows
    with answering(lambda request: answered(lake, places)) as (address, _):
        result = run(*by_key(lake), "--gateway", address, "--yes")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert f"brokers name {len(rows)} records that have none of the keys or ids in the lake" in said
    assert "nothing was removed" in said
    assert (lake.table("messages").num_rows, lake.table("erasures").num_rows) == (before, 0)
    # ids that nobody can check are no reason to remove anything either
    named = [pb.ErasedRecord(physical_offset=1 << 40, message_id=row["message_id"]) for row in rows]
    with answering(lambda request: answered(lake, named)) as (address, _):
        done = answer(run(*by_key(lake), "--gateway", address, "--yes", "--json"))
    assert done["topics"] == {TOPIC: 2, "%RETRY%g": 2, "rmq_sys_wheel_timer": 2}
    assert lake.table("messages").num_rows == before - 6


def test_a_gateway_that_names_what_the_lake_has_not_come_to_keeps_it_from_nothing(lake: MarkedLake) -> None:
    with LogWriter(lake.store) as writer:
        coming = writer.record("topic-0", b"stays", KEYS="elsewhere", UNIQ_KEY="elsewhere")
    named = [pb.ErasedRecord(physical_offset=coming.physical_offset)]
    with answering(lambda request: answered(lake, named)) as (address, _):
        done = answer(run(*by_key(lake), "--gateway", address, "--yes", "--json"))
        text = run(*by_key(lake), "--gateway", address, "--yes").output
    assert (done["records"], done["ahead"], done["settled"]) == (7, 1, True)
    assert "of 1 record the lake has no message yet: it learns from the brokers' journals" in text
    assert coming.physical_offset not in lake.table("erasures")["erased_physical_offset"].to_pylist()
    lake.reput()
    maintain(lake.location)
    assert b"stays" in lake.table("messages")["body"].to_pylist()


def test_a_broker_that_is_registered_meanwhile_is_of_the_next_call(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quiet(name: str) -> Callable[[pb.EraseRequest], pb.EraseResponse]:
        return lambda request: pb.EraseResponse(broker=name, log_id=name * 32)

    with answering(quiet("a")) as (first, asked), answering(quiet("b")) as (second, others):
        # name servers whose answer is another one each time
        monkeypatch.setattr(gateway_calls, "_addresses", lambda *_: [first, second][: 1 + bool(asked)])
        done = answer(run(*by_key(lake), "--namesrv", "127.0.0.1:1", "--yes", "--json"))
        assert (done["brokers_told"], others) == ([first], [])
        assert answer(run(*by_key(lake), "--namesrv", "127.0.0.1:1", "--yes", "--json"))["brokers_told"] == [
            first,
            second,
        ]


def test_a_trace_of_what_the_lake_has_forgotten_goes_by_the_word_of_a_broker(lake: MarkedLake) -> None:
    run(*by_key(lake), "--yes")
    with LogWriter(lake.store) as writer:
        trace = writer.record("RMQ_SYS_TRACE_TOPIC", b"SubAfter", KEYS=f"{lake.marker}ID0", UNIQ_KEY="T")
    lake.reput()
    place = [pb.ErasedRecord(physical_offset=trace.physical_offset, message_id="T")]
    with answering(lambda request: answered(lake, place)) as (address, _):
        assert answer(run(*by_key(lake), "--gateway", address, "--yes", "--json"))["records"] == 1
    assert lake.found() == []


def test_what_one_broker_says_has_another_erase_traces_alone(lake: MarkedLake) -> None:
    with LogWriter(lake.store) as writer:
        writer.record("RMQ_SYS_TRACE_TOPIC", b"Pub", KEYS="elsewhere", UNIQ_KEY="T")
        writer.record("topic-0", b"stays", KEYS="elsewhere", UNIQ_KEY="elsewhere")
    lake.reput()
    said = pb.EraseResponse(broker="a", log_id="a" * 32)
    said.records.add(physical_offset=7, message_id="elsewhere")
    quiet = pb.EraseResponse(broker="b", log_id="b" * 32)
    with (
        answering(lambda request: said) as (first, _),
        answering(lambda request: quiet) as (second, requests),
    ):
        done = answer(
            run(*by_key(lake), "--gateway", first, "--gateway", second, "--yes", "--json"),
        )
    assert [list(each.traced_ids) for each in requests if each.traced_ids] == [["elsewhere"]]
    assert not any("elsewhere" in each.message_ids for each in requests)
    assert done["topics"]["RMQ_SYS_TRACE_TOPIC"] == 1
    left = lake.table("messages")
    assert left.num_rows
    assert b"stays" in left["body"].to_pylist()
    assert b"Pub" not in left["body"].to_pylist()


def test_times_and_places_that_cannot_be_are_no_traceback(lake: MarkedLake) -> None:
    for kept_until_ms in (1 << 62, -(1 << 62)):
        record = pb.ErasedRecord(physical_offset=1 << 40, size=1, kept_until_ms=kept_until_ms)
        with answering(lambda request, record=record: answered(lake, [record])) as (address, _):  # type: ignore[misc]
            done = answer(run(*by_key(lake), "--gateway", address, "--yes", "--json"))
        assert [each["until"] for each in done["kept_by_brokers"]] == [None]
    negative = pb.ErasedRecord(physical_offset=-5)
    with answering(lambda request: answered(lake, [negative])) as (address, _):
        result = run(*by_key(lake), "--gateway", address, "--yes")
    assert (result.exit_code, "at physical offset -5, which is none" in result.output) == (1, True)


def test_a_broker_is_asked_until_it_has_looked_at_all_of_its_log(lake: MarkedLake) -> None:
    end = 1 << 40

    def page(request: pb.EraseRequest) -> pb.EraseResponse:
        """Of two records by key; a broker of the same host has looked at all of its own at once."""
        if not request.keys:
            return answered(lake, [])
        start = max((each.physical_offset for each in request.go_on), default=end)
        stopped = {"stopped_at": start + 1} if start < end + 3 else {}
        other = pb.EraseResponse(broker="other", log_id="l" * 32)
        if not request.go_on:
            other.records.add(physical_offset=7)
        return answered(
            lake, [pb.ErasedRecord(physical_offset=start)], new_records=1, others=[other], **stopped
        )

    with answering(page) as (address, requests):
        would = answer(run(*by_key(lake), "--gateway", address, "--dry-run", "--json"))
    assert would["new_at_brokers"] == 4
    assert [each["records"] for each in would["kept_by_brokers"]] == [4, 1]
    by_keys = [request for request in requests if request.keys]
    assert [[each.physical_offset for each in request.go_on] for request in by_keys] == [
        [],
        [end + 1],
        [end + 2],
        [end + 3],
    ]
    assert all(request.dry_run for request in requests)
    with answering(lambda request: answered(lake, [], stopped_at=5)) as (address, _):
        stuck = run(*by_key(lake), "--gateway", address, "--yes")
    assert (stuck.exit_code, "does not go on from 5" in stuck.output) == (1, True)


def test_a_broker_whose_search_has_no_end_is_not_asked_for_ever(
    lake: MarkedLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(erase_command, "_PAGES", 9)
    with answering(lambda request: answered(lake, [], stopped_at=next(ever))) as (address, requests):
        ever = itertools.count(1)
        result = run(*by_key(lake), "--gateway", address, "--yes")
    assert result.exit_code == 1
    assert "has no end: it went on 9 times, to physical offset 9" in " ".join(result.output.split())
    assert len(requests) == 9
