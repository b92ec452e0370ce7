"""Scroll ids come back as they were; whatever else a client sends is refused."""

from __future__ import annotations

import base64
import contextlib
import json
import random

import pytest

from broker_gateway.api.grpc.admin.scroll_ids import Scroll, decode, encode
from broker_gateway.lake.message_search import LakePlace
from broker_gateway.messaging.message_queries import Position
from broker_gateway.messaging.outcome import Reason, ServiceError

IN_LOG = Scroll(Position("log", 123), 7)
IN_LAKE = Scroll(Position("log", 1 << 40, True, LakePlace(1 << 50, "former", 5)), 0)


@pytest.mark.parametrize("scroll", [IN_LOG, IN_LAKE, Scroll(Position("", 0, True), 0)])
def test_they_come_back(scroll: Scroll) -> None:
    assert decode(encode(scroll)) == scroll


@pytest.mark.parametrize(
    "parts",
    [
        None,
        [],
        {},
        [2, 0, "log", 0, False, None],
        [1, -1, "log", 0, False, None],
        [1, 0, 5, 0, False, None],
        [1, 0, "log", 1 << 80, False, None],
        [1, 0, "log", 1.5, False, None],
        [1, 0, "log", True, False, None],
        [1, 0, "log", 0, 1, None],
        [1, 0, "log", 0, True, 5],
        [1, 0, "log", 0, True, [1, 2, 3]],
        [1, 0, "log", 0, True, [1, "x"]],
        [1, 0, "log", 0, True, ["1", "x", 3]],
        [1, 0, "log", 0, True, None, 0],
    ],
)
def test_others_are_refused(parts: object) -> None:
    with pytest.raises(ServiceError) as refused:
        decode(base64.urlsafe_b64encode(json.dumps(parts).encode()).decode())
    assert refused.value.reason is Reason.BAD_REQUEST


def test_damaged_ones_are_refused_or_say_something_else() -> None:
    chance = random.Random(7)
    text = encode(IN_LAKE)
    for _ in range(3000):
        damaged = list(text)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chr(chance.randrange(1, 300))
        with contextlib.suppress(ServiceError):
            assert 0 <= decode("".join(damaged)).given <= 1 << 62
    for other in ("A" * 5000, "[" * 900, "é", "=", "\ud800"):
        with pytest.raises(ServiceError):
            decode(other)
