"""`AdminService.Erase`: what it answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.api.grpc.admin import resources
from broker_gateway.messaging import erasure_search
from broker_gateway.transport.context import CallContext, RpcError
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        yield broker


def erase(broker: InProcessBroker, **asked: object) -> pb.EraseResponse:
    request = pb.EraseRequest(**asked)  # type: ignore[arg-type]
    context = CallContext({}, "127.0.0.1:1", None, ("127.0.0.1", 8081))
    answer: pb.EraseResponse = broker.run(broker.broker.admin.Erase(request, context))  # type: ignore[arg-type]
    return answer


def test_the_log_and_each_record_are_told(broker: InProcessBroker) -> None:
    ids = [broker.send("t", b"1", keys=["a", key]).entries[0].message_id for key in ("b", "c")]
    store = broker.store
    for dry_run in (True, False):
        answer = erase(broker, topic="t", keys=["b", "a"], dry_run=dry_run)
        assert (answer.broker, answer.log_id, answer.min_offset) == (store.broker, store.log_id, 0)
        assert answer.max_offset == store.max_offset
        assert answer.new_records == 2
        assert [(each.message_id, list(each.keys)) for each in answer.records] == [
            (ids[0], ["a", "b"]),
            (ids[1], ["a"]),
        ]
        (first, _) = answer.records
        assert first.stored_ms == store.stored_ms("t", 0, 0)
        record = store.record_to_erase(first.physical_offset)
        assert record is not None
        assert (first.size, first.topic, first.segment_start) == (record.size, "t", 0)


def test_texts_are_left_out_behind_the_bound_of_an_answer(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        broker.send("t", b"1", keys=["a"])
    whole = erase(broker, topic="t", keys=["a"])
    monkeypatch.setattr(resources, "_MOST_ANSWERED", whole.ByteSize() // 2)
    answer = erase(broker, topic="t", keys=["a"])
    assert [each.physical_offset for each in answer.records] == [
        each.physical_offset for each in whole.records
    ]
    assert {bool(each.message_id) for each in answer.records} == {True, False}
    assert [bool(each.topic) for each in answer.records] == [bool(each.keys) for each in answer.records]


def test_records_of_another_log_are_taken(broker: InProcessBroker) -> None:
    named = pb.LogRecords(broker="b", log_id="l" * 32, physical_offset=[1, 2])
    answer = erase(broker, records=[named])
    assert (list(answer.records), answer.new_records) == ([], 0)
    broker.crash()
    known = broker.broker.core.erasures
    assert known.version > 0


def test_what_is_refused_is_a_status(broker: InProcessBroker) -> None:
    def code(**asked: object) -> str:
        with pytest.raises(RpcError) as error:
            erase(broker, **asked)
        return error.value.code

    assert code() == "INVALID_ARGUMENT"
    broker.send("t", b"1", keys=["a"])
    broker.store.inject("append", OSError(28, "No space left on device"))
    assert code(topic="t", keys=["a"]) == "UNAVAILABLE"
    assert code(topic="t", keys=["a"], go_on=[place(broker, -1)]) == "INVALID_ARGUMENT"


def place(broker: InProcessBroker, offset: int) -> pb.LogPlace:
    return pb.LogPlace(broker=broker.store.broker, log_id=broker.store.log_id, physical_offset=offset)


def test_an_answer_says_where_the_next_call_goes_on(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        broker.send("t", b"1", keys=["a"])
    monkeypatch.setattr(erasure_search, "MOST_FOUND", 2)
    first = erase(broker, topic="t", keys=["a"])
    assert (len(first.records), first.HasField("stopped_at")) == (2, True)
    of_another = pb.LogPlace(broker="b", log_id="l" * 32, physical_offset=0)
    others = erase(broker, topic="t", keys=["a"], go_on=[of_another])
    assert (list(others.records), others.HasField("stopped_at")) == ([], False)
    rest = erase(broker, topic="t", keys=["a"], go_on=[of_another, place(broker, first.stopped_at)])
    assert (len(rest.records), rest.new_records, rest.HasField("stopped_at")) == (1, 1, False)
