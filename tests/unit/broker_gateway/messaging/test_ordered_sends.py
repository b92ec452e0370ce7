"""Where message groups go while brokers come and go; with real brokers: `tests/integration/gateway/test_ordered_sends.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker_gateway.config.gateway import load_config
from broker_gateway.messaging.ordered_sends import MISSING_S, OrderedSends, bucket
from broker_gateway.messaging.placed_brokers import FILE, PlacedBrokers
from broker_gateway.metadata.catalog import Topic
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock

TOPIC = Topic("orders", 2, 2)
GROUP = next(each for each in map(str, range(100)) if bucket(each, 6) in (2, 3))
"""Of the second of three brokers."""


class Known:
    """What name servers say, as a test needs it: these races are not to be had at will."""

    own_name = "a"

    def __init__(self) -> None:
        self.counts = {"a": 2, "b": 2, "c": 2}
        self.alive = {"a", "b", "c"}

    def writable(self, topic: Topic) -> dict[str, int]:
        return dict(self.counts)

    def when_known(self, topic: str, callback: Callable[[], None]) -> None:
        callback()


class Sends:
    def __init__(self, clock: ManualClock, store: Path) -> None:
        self.clock = clock
        self.known: Any = Known()
        self.store = store
        self.start()

    def start(self) -> None:
        """Also once more, over the same store."""
        config, placed = load_config(None, {})[0], PlacedBrokers(self.store)
        self.sends = OrderedSends(config, self.known, None, lambda: [TOPIC], placed)  # type: ignore[arg-type]

    def broker(self) -> str:
        return self.sends.place(TOPIC, GROUP).broker

    def wait(self, seconds: float) -> None:
        """With the look that a broker has at its cluster."""
        for _ in range(int(seconds)):
            self.clock.move(10**9)
            asyncio.run(self.sends.run())


@pytest.fixture
def sends(tmp_path: Path) -> Iterator[Sends]:
    clock = ManualClock()
    with clock.in_place():
        made = Sends(clock, tmp_path)
        assert made.broker() == "b"
        yield made


def test_a_broker_that_leaves_keeps_its_groups_for_a_time(sends: Sends) -> None:
    sends.wait(700)
    del sends.known.counts["b"]  # the name server says so before it is known to be gone
    assert sends.broker() == "b"
    sends.wait(3)
    assert sends.broker() == "b"
    sends.known.alive.remove("b")
    sends.wait(590)
    assert sends.broker() == "b"
    sends.wait(20)
    assert sends.broker() != "b"


def test_a_broker_that_came_and_left_between_two_sends_is_waited_for(sends: Sends) -> None:
    """Also where a topic's types do not say that its messages are ordered: there were such."""
    of_d = next(each for each in map(str, range(100)) if bucket(each, 8) in (6, 7))
    sends.known.counts["d"] = 2
    sends.known.alive.add("d")
    sends.wait(1)
    del sends.known.counts["d"]
    sends.known.alive.remove("d")
    assert sends.sends.place(TOPIC, of_d).broker == "d"


def test_a_broker_that_comes_back_has_its_groups(sends: Sends) -> None:
    del sends.known.counts["b"]
    sends.known.alive.remove("b")
    sends.wait(100)
    assert sends.broker() == "b"
    sends.known.alive.add("b")  # it runs, and has not registered its topics yet
    assert sends.broker() == "b"
    sends.known.counts["b"] = 2
    sends.wait(100)
    assert sends.broker() == "b"


def test_a_broker_that_has_the_topic_no_more_has_no_groups(sends: Sends) -> None:
    del sends.known.counts["b"]
    assert sends.broker() == "b"
    sends.wait(MISSING_S + 2)
    assert sends.broker() != "b"


def test_a_broker_that_must_not_be_written_to_has_no_groups_at_once(sends: Sends) -> None:
    sends.known.counts["b"] = 0
    assert sends.broker() != "b"


def test_a_broker_that_starts_while_another_is_away_waits_for_it(sends: Sends) -> None:
    sends.wait(1)
    del sends.known.counts["b"]
    sends.known.alive.remove("b")
    sends.start()
    assert sends.broker() == "b"
    sends.wait(590)
    assert sends.broker() == "b"
    sends.wait(20)
    assert sends.broker() != "b"
    sends.wait(1)
    sends.start()
    assert sends.broker() != "b", "it is out of the file"


@pytest.mark.parametrize("text", ["", "{", '{"orders": {"b": "many"}}', '{"orders": {"b": -1}}', "[1]"])
def test_a_damaged_file_of_brokers_is_passed_over(sends: Sends, text: str) -> None:
    sends.wait(1)
    (sends.store / FILE).write_text(text)
    del sends.known.counts["b"]
    sends.known.alive.remove("b")
    with capture_logs() as lines:
        sends.start()
    assert [line["log_level"] for line in lines] == ["warning"]
    assert sends.broker() != "b"
    sends.wait(1)
    sends.start()
    assert sends.broker() != "b"


def test_a_file_of_brokers_that_cannot_be_written_stops_nothing(sends: Sends) -> None:
    (sends.store / FILE.parent).write_text("in its way")
    with capture_logs() as lines:
        sends.wait(3)
    assert [line["log_level"] for line in lines] == ["warning"]
    assert sends.broker() == "b"


@pytest.mark.parametrize("request_bytes", [b"\xff" * 100, b"\x0a\x05ab"])
def test_bytes_handed_over_that_are_no_request_are_refused_without_a_trace_in_the_log(
    request_bytes: bytes,
) -> None:
    """Whoever reaches the remoting port can send them as often as he likes."""
    with InProcessBroker() as broker, capture_logs() as lines:
        broker.create_topic("orders")
        answer: list[bytes] = []
        messaging = broker.broker.messaging
        broker.do(
            lambda: messaging.send_ordered(request_bytes, "orders", 0, "10.0.0.1:1").when_set(answer.append)
        )
        status = rpc.SendMessageResponse.FromString(answer[0]).status
    assert status.code == pb.BAD_REQUEST
    assert "the request is no SendMessageRequest" in status.message
    assert [line for line in lines if line["log_level"] == "error"] == []
