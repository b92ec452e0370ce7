"""Tickets: what is read is what was sealed, by this process, and lately."""

from __future__ import annotations

import random

import pytest

from lakebroker_pb.lakebroker.flight.v1 import ticket_pb2 as tickets
from structured_streaming.flight.failures import CallError
from structured_streaming.flight.tickets import Tickets


def test_a_ticket_holds_what_was_sealed_and_no_two_are_alike() -> None:
    made = Tickets(60)
    one, other = (made.sealed(tickets.Ticket(statement="SELECT 1")) for _ in range(2))
    assert made.opened(one).statement == "SELECT 1"
    assert made.opened(one).id != made.opened(other).id


def test_nothing_but_a_whole_ticket_of_this_process_is_read() -> None:
    made, other = Tickets(60), Tickets(60)
    sealed = made.sealed(tickets.Ticket(statement="SELECT 1"))
    wrong = [
        b"",
        b"SELECT 1",
        sealed[:-1],
        sealed + b"\0",
        other.sealed(tickets.Ticket(statement="SELECT 1")),
    ]
    dice = random.Random(1)
    for _ in range(200):
        at = dice.randrange(len(sealed))
        wrong.append(sealed[:at] + bytes([sealed[at] ^ 1 << dice.randrange(8)]) + sealed[at + 1 :])
    for each in wrong:
        with pytest.raises(CallError, match="none of this server's"):
            made.opened(each)


def test_a_ticket_ends() -> None:
    now = 0.0
    made = Tickets(60, lambda: now)
    sealed = made.sealed(tickets.Ticket(statement="SELECT 1"))
    now = 59.0
    assert made.opened(sealed).statement == "SELECT 1"
    now = 61.0
    with pytest.raises(CallError, match="older than 60 s"):
        made.opened(sealed)
