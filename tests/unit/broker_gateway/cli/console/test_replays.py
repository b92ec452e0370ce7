"""Dead letters that the console sends again: which, how far it is, and what ends it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.cli.console import replays as module
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.replays import Place, Plan, Replays
from broker_gateway.cli.gateway_calls import GatewayCalls, Reached
from broker_gateway.cli.output import fail
from broker_gateway.cli.questions import letters as reading
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from tests.support.waiting import LIMIT_S, wait_until

HERE = Reached("here:1", "", None, None)
DEAD = 40


class Calls(GatewayCalls):
    """Those of a command, to a broker in this process. `before`: called with the name of each."""

    def __init__(self, broker: InProcessBroker) -> None:
        self.address = HERE.gateway
        self.broker = broker
        self.made: list[str] = []
        self.before: Callable[[str], None] = lambda name: None

    def _call(self, path: str, request: Any, *_: Any, **__: Any) -> Any:
        name = path.rpartition("/")[2]
        self.before(name)
        self.made.append(name)
        return self.broker.call(name, request)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    with InProcessBroker(tmp_path) as broker:
        broker.create_topic("orders", 1)
        broker.create_group("billing")
        for number in range(DEAD):
            broker.send("orders", b"%d" % number)
        dead = 0
        while dead < DEAD:
            _, received = broker.receive("orders", "billing")
            for each in received:
                broker.dead_letter("orders", "billing", each, 1)
            dead += len(received)
        made = Calls(broker)
        monkeypatch.setattr(module, "connected", lambda *_: contextlib.nullcontext(made))
        yield made


def places(calls: Calls) -> list[Place]:
    """Of all dead letters."""
    return [
        Place(
            each.system_properties.queue_id,
            each.system_properties.queue_offset,
            each.system_properties.message_id,
        )
        for each in reading.letters(calls, "billing", 1, reading.EVERY)
    ]


def sent(calls: Calls) -> list[bytes]:
    """Messages that replays added to the topic, behind those that it had at first."""
    found: list[bytes] = []
    calls.broker.create_group("audit")
    while received := calls.broker.receive(
        "orders",
        "audit",
    )[1]:
        found += [each.body for each in received if "REPLAY_OF" in each.user_properties]
    return found


def ended(replays: Replays, plan: Plan) -> module.Run:
    run = replays.begin(plan)
    wait_until(lambda: run.ended_ms)
    return run


def test_those_that_are_chosen_are_read_where_they_are_and_marked_when_they_are_sent(calls: Calls) -> None:
    replays, every = Replays(HERE, True), places(calls)
    chosen = [every[3], every[30]]
    calls.made.clear()
    plan = replays.plan("billing", chosen)
    assert (plan.targets, plan.failing, plan.again) == ((("orders", 2),), 0, 0)
    assert calls.made.count("PullMessage") == 2
    run = ended(replays, plan)
    assert (run.sent, run.failed, run.error, run.said) == (2, 0, "", "2 dead letters sent again")
    assert sorted(sent(calls)) == [b"3", b"30"]
    assert calls.made.count("PullMessage") == 4, "sending reads no more than what was counted"
    assert replays.of("billing") is run
    assert [replays.mark("billing", each) is not None for each in every].count(True) == 2
    assert replays.mark("billing", chosen[1]) is not None
    assert replays.mark("billing", chosen[1]._replace(message_id="of another broker")) is None
    assert replays.plan("billing", ()).again == 2
    assert len(replays.plan("billing", ()).keys) == DEAD


def test_a_message_whose_answer_is_lost_may_have_been_sent_and_the_next_question_counts_it(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, refused = calls.broker.call, rpc.SendMessageResponse(status=pb.Status(code=pb.TOPIC_NOT_FOUND))

    def lost(name: str, request: Any) -> Any:
        number = calls.made.count("SendMessage")
        if name == "SendMessage" and number == 2:
            return refused
        answered = answer(name, request)
        return fail("nobody answered") if name == "SendMessage" and number == 4 else answered

    monkeypatch.setattr(calls.broker, "call", lost)
    replays, every = Replays(HERE, True), places(calls)
    run = ended(replays, replays.plan("billing", ()))
    assert run.said == (
        "2 dead letters sent again; 1 could not be sent: failed: TOPIC_NOT_FOUND ; 1 may have been sent: nobody answered; "
        f"{DEAD - 4} not tried"
    )
    assert sorted(sent(calls)) == [b"0", b"2", b"3"]
    marks = [replays.mark("billing", each) for each in every[:5]]
    assert [None if each is None else each.sure for each in marks] == [True, None, True, False, None]
    plan = replays.plan("billing", ())
    assert (plan.again, plan.maybe) == (2, 1)


def test_a_place_with_another_message_is_no_dead_letter_that_was_chosen(calls: Calls) -> None:
    wrong = places(calls)[0]._replace(message_id="of another broker")
    for each in (wrong, Place(0, 10_000, wrong.message_id)):
        with pytest.raises(AskError, match="billing has no such dead letter at here:1"):
            Replays(HERE, True).plan("billing", [each])


@pytest.mark.parametrize("first", [True, False])
def test_dead_letters_of_two_brokers_at_one_place_are_two(calls: Calls, first: bool) -> None:
    here = places(calls)[3]
    other = here._replace(message_id="of another broker", broker="broker-b")
    plan = Replays(HERE, True).plan("billing", [here, other] if first else [other, here])
    assert (plan.targets, plan.missing) == ((("orders", 1),), 1)


def test_what_another_tab_sent_meanwhile_is_not_sent_once_more(calls: Calls) -> None:
    replays, every = Replays(HERE, True), places(calls)
    ended(replays, replays.plan("billing", every[:2]))
    plan, other = replays.plan("billing", every[:4]), replays.plan("billing", every[2:3])
    assert plan.again == 2
    ended(replays, other)
    with pytest.raises(AskError, match=r"^1 of these dead letters was sent meanwhile: ask again$"):
        replays.begin(plan)
    assert ended(replays, replays.plan("billing", every[:4])).sent == 4


def test_a_long_replay_is_shown_while_it_goes_on_and_ends_between_two_messages(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays, go = Replays(HERE, True), threading.Semaphore(0)
    plan = replays.plan("billing", ())
    calls.before = lambda name: name == "SendMessage" and go.acquire(timeout=LIMIT_S)  # type: ignore[func-returns-value]
    run = replays.begin(plan)
    for _ in range(3):
        go.release()
    wait_until(lambda: run.sent == 3)
    assert run.said == f"sending again: 3 of {DEAD} dead letters"
    with pytest.raises(AskError, match="another replay is under way"):
        replays.begin(plan)
    monkeypatch.setattr(module, "_STOP_S", 0.01)
    assert replays.stop().endswith(f": 3 dead letters of {DEAD} sent again; one more may have been sent")
    go.release()
    wait_until(lambda: run.ended_ms)
    assert run.said == f"4 dead letters sent again; {DEAD - 4} not tried: the console was ended"
    assert calls.made.count("SendMessage") == 4
    assert replays.stop() == ""


def test_a_replay_for_which_there_is_no_thread_was_none(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    replays = Replays(HERE, True)
    plan = replays.plan("billing", ())
    with monkeypatch.context() as exhausted:
        exhausted.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            replays.begin(plan)
    assert replays.of("billing") is None
    assert ended(replays, plan).sent == DEAD


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_console_that_ends_says_what_its_replay_did(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STOP_S", 0.01)
    replays, go = Replays(HERE, True), threading.Semaphore(1)
    calls.before = lambda name: name == "SendMessage" and go.acquire(timeout=LIMIT_S)  # type: ignore[func-returns-value]
    run = replays.begin(replays.plan("billing", ()))
    wait_until(lambda: run.sent == 1)
    said = replays.stop()
    go.release()
    wait_until(lambda: run.ended_ms)
    assert said == (
        f"the replay of billing was ended: 1 dead letter of {DEAD} sent again; one more may have been sent"
    )


def test_a_gateway_that_gives_nothing_and_no_end_is_not_asked_for_ever(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = calls.broker.call

    def stuck(name: str, request: Any) -> Any:
        answers = answer(name, request)
        if isinstance(request, rpc.PullMessageRequest):
            return [
                rpc.PullMessageResponse(next_offset=request.offset) if each.HasField("next_offset") else each
                for each in answers
            ]
        return answers

    monkeypatch.setattr(calls.broker, "call", stuck)
    with pytest.raises(AskError, match="answered PullMessage at 0 without a way on"):
        Replays(HERE, True).plan("billing", ())
