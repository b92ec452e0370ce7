"""Check points and acks as the real broker 5.5.0 writes them; damaged ones are named."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.migration.check_points import (
    CheckPoint,
    CheckPointError,
    PopKey,
    ReviveQueue,
    ack_body,
    check_point_body,
    parse_ack,
    parse_check_point,
)

REVIVE = ReviveQueue("rmq_sys_REVIVE_LOG_DefaultCluster", 2)
# bodies from the log of a real broker 5.5.0
CK = (
    b'{"bm":0,"bn":"broker-a","c":"readers","d":[0,1,2,3,4,6],"it":600000,"n":6,"pt":1795261310565,"q":1,'
    b'"reviveTime":1795261910565,"ro":0,"so":6,"sp":false,"t":"orders"}'
)
ACK = b'{"ao":9,"bn":"broker-a","c":"readers","pt":1795261310565,"q":1,"so":6,"t":"orders"}'
KEY = PopKey(QueueKey("readers", "orders", 1), 6, 1795261310565, "broker-a")


def test_a_real_check_point_and_its_ack() -> None:
    assert parse_check_point(CK, REVIVE) == CheckPoint(KEY, (6, 7, 8, 9, 10, 12), 1795261910565, REVIVE)
    assert parse_ack(ACK, batch=False) == (KEY, [9])
    whole = json.loads(ACK)
    del whole["ao"]
    assert parse_ack(json.dumps({**whole, "aol": [6, 12]}).encode(), batch=True) == (KEY, [6, 12])


def test_consecutive_offsets_and_long_names() -> None:
    old = json.loads(CK)
    del old["d"]
    assert parse_check_point(json.dumps(old).encode(), REVIVE).offsets == (6, 7, 8, 9, 10, 11)
    long = {"ackOffset": 3, "startOffset": 2, "consumerGroup": "g", "topic": "t", "queueId": 1, "popTime": 4}
    assert parse_ack(json.dumps(long).encode(), batch=False) == (PopKey(QueueKey("g", "t", 1), 2, 4, ""), [3])


@given(
    start=st.integers(0, 1 << 60),
    others=st.sets(st.integers(1, (1 << 31) - 1), max_size=31),
    pop_ms=st.integers(0, 1 << 50),
    invisible=st.integers(0, 1 << 40),
)
def test_what_we_write_is_what_we_read(start: int, others: set[int], pop_ms: int, invisible: int) -> None:
    key = PopKey(QueueKey("g", "%RETRY%g_t", 7), start, pop_ms, "b")
    offsets = (start, *(start + each for each in sorted(others)))
    point = CheckPoint(key, offsets, pop_ms + invisible, REVIVE)
    assert parse_check_point(check_point_body(point), REVIVE) == point
    assert parse_ack(ack_body(key, offsets[-1]), batch=False) == (key, [offsets[-1]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"t": None}, "t is None"),
        ({"c": ""}, "c is ''"),
        ({"q": -1}, "q is -1"),
        ({"so": 1.5}, "so is 1.5"),
        ({"so": 1 << 63}, "so is 9223372036854775808"),
        ({"pt": True}, "pt is True"),
        ({"it": "9"}, "it is '9'"),
        ({"n": 128}, "n is 128"),
        ({"d": 3}, "d is 3"),
        ({"d": [0, -1]}, "d is -1"),
        ({"bn": 5}, "bn is 5"),
    ],
)
def test_what_makes_no_sense_is_named(change: dict[str, object], said: str) -> None:
    with pytest.raises(CheckPointError, match=said):
        parse_check_point(json.dumps({**json.loads(CK), **change}).encode(), REVIVE)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[]", b"7", b"[" * 100_000, b'{"t":"x"}'])
def test_what_is_no_check_point(body: bytes) -> None:
    with pytest.raises(CheckPointError):
        parse_check_point(body, REVIVE)
    for batch in (True, False):
        with pytest.raises(CheckPointError):
            parse_ack(body, batch=batch)


@given(st.binary(max_size=200))
def test_no_bytes_do_harm(body: bytes) -> None:
    with pytest.raises(CheckPointError):
        parse_check_point(body, REVIVE)
