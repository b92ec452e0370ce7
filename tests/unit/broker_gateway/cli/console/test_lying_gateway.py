"""What a gateway that is none answers ends a question with a sentence, and in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from broker_gateway.cli.console import asking, replays
from broker_gateway.cli.console.asking import MOST_MESSAGES, Places
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.replays import Replays
from broker_gateway.cli.gateway_calls import Reached, connected
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as public
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as own
from tests.support.waiting import wait_until

OK = pb.Status(code=pb.OK)
MESSAGE = pb.Message(topic=pb.Resource(name="t"), system_properties=pb.SystemProperties(message_id="1"))
Answer = Callable[[bytes], Any]


class Liar(grpc.GenericRpcHandler):
    """Answers by the name of a call; a list is a stream."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self._answers = answers

    def service(self, details: Any) -> Any:
        answer = self._answers.get(details.method.rpartition("/")[2])
        if answer is None:
            return None
        if details.method.endswith("/PullMessage"):
            return grpc.unary_stream_rpc_method_handler(
                lambda request, _: (each.SerializeToString() for each in answer(request))
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, _: answer(request).SerializeToString())


@contextmanager
def lying(**answers: Answer) -> Iterator[Reached]:
    """A gateway of these answers, which has a group g with dead letters of one queue."""
    common: dict[str, Answer] = {
        "ListGroups": lambda _: own.ListGroupsResponse(groups=[own.Group(name="g")]),
        "ListTopics": lambda _: own.ListTopicsResponse(topics=[own.Topic(name="%DLQ%g", queues=1)]),
        "DescribeTopicStatus": lambda _: public.DescribeTopicStatusResponse(status=OK),
        "QueryOffset": _offset,
    }
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Liar(common | answers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield Reached(f"127.0.0.1:{port}", "", None, None)
        finally:
            server.stop(None)


def _offset(request: bytes) -> rpc.QueryOffsetResponse:
    policy = rpc.QueryOffsetRequest.FromString(request).query_offset_policy
    return rpc.QueryOffsetResponse(status=OK, offset=0 if policy == pb.BEGINNING else 1 << 62)


def test_pages_without_an_end_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWERS_S", 1.0)

    def page(_: bytes) -> public.ListMessageResponse:
        return public.ListMessageResponse(status=OK, scroll_id="again")

    with (
        lying(QueryMessage=page) as reached,
        pytest.raises(AskError, match="came to no end within 1 s"),
    ):
        Places(reached, None).found("key", "t")


def test_no_more_messages_are_taken_than_were_asked_for() -> None:
    def page(_: bytes) -> public.ListMessageResponse:
        return public.ListMessageResponse(status=OK, messages=[MESSAGE] * 100, scroll_id="again")

    with lying(QueryMessage=page) as reached:
        assert len(Places(reached, None).found("key", "t").stories[0].messages) == MOST_MESSAGES


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([], "without a status"),
        ([rpc.PullMessageResponse(status=OK)], "at 0 without a way on"),
        (
            [rpc.PullMessageResponse(status=OK), rpc.PullMessageResponse(next_offset=0)],
            "at 0 without a way on",
        ),
    ],
)
def test_dead_letters_that_lead_nowhere_are_refused(answers: list[Any], said: str) -> None:
    with lying(PullMessage=lambda _: answers) as reached:
        for question in (
            lambda: Places(reached, None).dead_letters("g"),
            lambda: Replays(reached, allowed=True).plan("g", ()),
        ):
            with pytest.raises(AskError, match=said):
                question()


def test_dead_letters_without_an_end_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "ANSWERS_S", 1.0)

    def batch(request: bytes) -> list[Any]:
        at = rpc.PullMessageRequest.FromString(request).offset
        return [rpc.PullMessageResponse(status=OK), rpc.PullMessageResponse(next_offset=at + 1)]

    with lying(PullMessage=batch) as reached, pytest.raises(AskError, match="came to no end within 1 s"):
        Replays(reached, allowed=True).plan("g", ())


@pytest.mark.parametrize("count", ["many", "-1", "9" * 4000, "٣"])
def test_a_count_that_is_none_is_said(count: str) -> None:
    status = public.DescribeTopicStatusResponse(status=OK, tags={"messages": count})
    with (
        lying(DescribeTopicStatus=lambda _: status) as reached,
        pytest.raises(AskError, match=r"messages '.*', which is no count; is it a lakebroker"),
    ):
        Places(reached, None).topic_status(["t"])


def test_a_health_that_has_no_name_is_none() -> None:
    answer = health_pb2.HealthCheckResponse(status=77)
    with (
        lying(Check=lambda _: answer) as reached,
        connected(reached.gateway, None, None) as calls,
    ):
        assert calls.health(5.0) == "77"


def _letter(offset: int) -> list[rpc.PullMessageResponse]:
    system = pb.SystemProperties(message_id=str(offset), queue_offset=offset)
    system.dead_letter_queue.topic, system.dead_letter_queue.message_id = "t", str(offset)
    message = pb.Message(topic=pb.Resource(name="%DLQ%g"), system_properties=system, body=b"b")
    return [
        rpc.PullMessageResponse(status=OK),
        rpc.PullMessageResponse(message=message),
        rpc.PullMessageResponse(message=message),
        rpc.PullMessageResponse(next_offset=offset + 1),
    ]


def _three(request: bytes) -> rpc.QueryOffsetResponse:
    answer = _offset(request)
    return rpc.QueryOffsetResponse(status=OK, offset=min(answer.offset, 3))


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([OK, None], "1 dead letter sent again; 1 may have been sent: the gateway at "),
        ([OK, pb.Status(code=4), OK], "2 dead letters sent again; 1 could not be sent: failed: 4 "),
    ],
)
def test_what_became_of_each_dead_letter_of_a_replay_is_said(sent: list[Any], said: str) -> None:
    answers = iter(sent)

    def send(_: bytes) -> rpc.SendMessageResponse:
        status = next(answers)
        if status is None:
            raise ConnectionError("this one is not answered")
        return rpc.SendMessageResponse(status=status, entries=[rpc.SendResultEntry(status=status)])

    def pull(request: bytes) -> list[rpc.PullMessageResponse]:
        return _letter(rpc.PullMessageRequest.FromString(request).offset)

    with lying(PullMessage=pull, QueryOffset=_three, SendMessage=send) as reached:
        replaying = Replays(reached, allowed=True)
        plan = replaying.plan("g", ())
        assert (len(plan.keys), plan.targets) == (3, (("t", 3),))
        run = replaying.begin(plan)
        wait_until(lambda: run.ended_ms)
        assert run.said.startswith(said)
        assert run.said.endswith("; 1 not tried") is (None in sent)
