"""Delivery under errors, hang-ups, restarts and crashes: the machine in short; `tests/fault` has it for twenty minutes."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.suite.evidence import LONG, rounds
from tests.support.brokers.delivery_cuts import cuts
from tests.support.brokers.delivery_known import ORDERED
from tests.support.brokers.delivery_machine import DeliveryMachine

CALLS = ("append", "read", "record", "entries")
TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(
    max_examples=5,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def everything(machine: DeliveryMachine) -> None:
    """Each way in and out of flight, by both groups; `rate_limited_log` delivers twice."""
    machine.send(["a", "b", "a", "b", "a", "b"])
    machine.wait("often", "two", "b", 20_000)
    machine.receive("often", "one", "a", 2, 10_000)
    machine.receive("often", "one", "a", 2, 1000, "x", gone=True)
    machine.receive("often", "one", "b", 5, 1000)
    if machine.handles:
        machine.ack([0])
        machine.nack(1, 300)
    machine.receive("rate_limited_log", "one", "*", 5, 100)
    machine.commit("often", 0, 5)
    machine.advance(0.6)
    machine.receive("rate_limited_log", "two", "*", 5, 100, "y")
    machine.receive("rate_limited_log", "two", "*", 5, 100, "y")
    if machine.handles:
        machine.give_up(-1)
    machine.advance(3.0)
    machine.send(["a", "b"])
    machine.receive("often", "two", "*", 5, 1000)


def in_order(machine: DeliveryMachine) -> None:
    """Each way in and out of flight, and out of being held back, by the ordered group; it delivers three times."""
    machine.send_ordered([("x", "a"), ("y", "a"), ("x", "b"), ("x", "a"), ("z", "a"), ("y", "b")])
    machine.send(["a", "b", "a"])
    machine.receive(ORDERED, "one", "*", 3, 10_000, "x")
    machine.receive(ORDERED, "two", "*", 1, 1000, "y")
    machine.receive(ORDERED, "one", "*", 3, 10_000, "x")
    machine.wait(ORDERED, "two", "a", 20_000)
    if machine.handles:
        machine.ack([0])
        machine.nack(1, 300)
        machine.nack(2, 0, suspend=True)
    machine.receive(ORDERED, "two", "*", 5, 100, "x", gone=True)
    machine.advance(3.0)
    machine.receive(ORDERED, "two", "*", 5, 100, "x")
    machine.receive(ORDERED, "two", "*", 5, 100, "x")
    machine.send_ordered([("x", "b"), ("x", "a")])
    machine.commit(ORDERED, 0, 2)
    machine.advance(0.6)
    machine.receive(ORDERED, "one", "*", 5, 100)
    if machine.handles:
        machine.give_up(-1)
    machine.advance(0.6)
    machine.receive(ORDERED, "one", "*", 5, 10_000)
    machine.advance(30.0)
    machine.reset(ORDERED, 1, 1)
    machine.receive(ORDERED, "one", "*", 5, 1000)
    if machine.handles:
        machine.nack(-5, 0)
    machine.receive(ORDERED, "two", "*", 5, 1000)


@pytest.mark.parametrize(
    ("everything", "compiled"),
    [(everything, False), pytest.param(everything, True, marks=LONG), (in_order, False)],
)
@pytest.mark.parametrize("call", CALLS)
def test_an_error_at_every_call(
    everything: Callable[[DeliveryMachine], None], call: str, compiled: bool
) -> None:
    """One at a time, then a crash. In short every twelfth call, each time others by the kind of call."""
    step = rounds(12, 1)
    number = CALLS.index(call) % step
    calls = number + 1
    while number < calls:
        machine = DeliveryMachine()
        machine.start(compiled=compiled)
        before = machine.broker.store.calls[call]
        machine.break_one(call, number, OSError(errno.EIO, "Input/output error"))
        try:
            everything(machine)
            calls = machine.broker.store.calls[call] - before
            machine.restart(crash=True)
        except BaseException as error:
            error.add_note(f"the {number}th call of {call} failed")
            raise
        finally:
            machine.teardown()
        number += step
    assert number > 3


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_log_that_ends_behind_any_of_its_records(tmp_path: Path, snapshot: bool) -> None:
    machine = DeliveryMachine()
    machine.start(2048 if snapshot else 1 << 40)
    in_order(machine)
    assert cuts(machine, tmp_path) > 30


def test_found_a_committed_offset_that_went_back_when_nothing_was_in_flight_any_more() -> None:
    machine = DeliveryMachine()
    machine.start()
    machine.send(["a"] * 6)
    machine.receive("often", "one", "*", 5, 10_000)
    queue_id = machine.handles[0].place[0]
    machine.commit("often", queue_id, 1)
    machine.ack(range(len(machine.handles)))
    machine.teardown()


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_a_restart_keeps_what_was_given_back_and_what_was_suspended(crash: bool, snapshot: bool) -> None:
    machine = DeliveryMachine()
    machine.start(2048 if snapshot else 1 << 40)
    machine.send(["a", "b", "a", "b"])
    machine.receive("often", "one", "a", 1, 10_000)
    machine.receive("often", "one", "a", 1, 10_000, gone=True)
    machine.nack(0, 5000, suspend=True)
    machine.advance(0.05)  # a snapshot goes on
    for _ in range(2):
        machine.restart(crash)
        machine.nack(len(machine.handles) - 1, 300, suspend=True)
    machine.receive("often", "two", "b", 5, 1000)
    machine.receive("often", "two", "a", 5, 1000)
    machine.advance(0.6)
    machine.receive("often", "two", "a", 5, 1000)
    assert {each.attempt for each in machine.handles} == {1}
    machine.teardown()


def test_found_a_returned_message_whose_time_was_over_returned_again_by_a_crash() -> None:
    machine = DeliveryMachine()
    machine.start(2048)
    machine.send(["a"])
    machine.wait("often", "one", "*", 500)
    machine.receive("rate_limited_log", "one", "*", 1, 100, gone=True)
    machine.advance(0.6)
    machine.restart(crash=True)
    machine.teardown()


@pytest.mark.parametrize("after", range(3))
def test_found_a_handle_good_again_when_the_dead_letter_of_its_message_could_not_be_stored(
    after: int,
) -> None:
    machine = DeliveryMachine()
    machine.start()
    machine.send(["a"])
    for attempt in range(1, 3):  # the second is the last of `rate_limited_log`
        machine.receive("rate_limited_log", "one", "*", 1, 100)
        assert machine.handles[-1].attempt == attempt
        machine.break_one("append", after, OSError(errno.ENOSPC, "No space left")) if attempt == 2 else None
        machine.advance(0.6)
    machine.give_up(len(machine.handles) - 1)
    machine.ack([len(machine.handles) - 1])
    machine.advance(30.0)
    machine.teardown()


def test_found_an_attempt_not_known_any_more_behind_another_one_of_its_client() -> None:
    """A client may have several receives under way."""
    machine = DeliveryMachine()
    machine.start()
    machine.send_ordered([("x", "a"), ("y", "a"), ("z", "a"), ("x", "a"), ("y", "a")])
    for attempt_id in ("x", "y", "x", "y", "x"):
        machine.receive(ORDERED, "one", "*", 1, 10_000, attempt_id)
    machine.receive(ORDERED, "two", "*", 5, 10_000)  # the last ones are held back
    machine.restart(crash=True)
    for attempt_id in ("y", "x", "y", "x"):
        machine.receive(ORDERED, "one", "*", 1, 10_000, attempt_id)
    machine.teardown()
