"""A tag expression that looks as if something else were meant: taken as the original takes it, and said once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_gateway.delivery.filters.tags import parse_tag_filter
from broker_gateway.messaging.filter_warnings import MOST_KNOWN, FilterWarnings
from lakebroker_testing.broker import InProcessBroker


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("orders")
        broker.send("orders", b"one", tag="gift")
        yield broker


@pytest.mark.parametrize(
    ("expression", "doubtful"),
    [
        ("a && b", ("a && b",)),
        ("gift |", ("gift |",)),
        ("a,b || c", ("a,b",)),
        ("a or b", ("a or b",)),
        ("a || b", ()),
        ("a-b_c%1", ()),
        ("*", ()),
    ],
)
def test_what_looks_as_if_something_else_were_meant(expression: str, doubtful: tuple[str, ...]) -> None:
    assert parse_tag_filter(expression).doubtful == doubtful


def test_a_receive_says_once_what_it_selects(broker: InProcessBroker) -> None:
    with capture_logs() as logs:
        for _ in range(3):
            assert not broker.receive("orders", "audit", filter="gift |")[1]
    (line,) = [each for each in logs if "tag expression" in each["event"]]
    assert (line["log_level"], line["group"], line["topic"]) == ("warning", "audit", "orders")
    assert line["tags"] == ["'gift |'"]


def test_what_is_remembered_and_said_is_bounded() -> None:
    warnings, tags = FilterWarnings(), parse_tag_filter("a && b")
    with capture_logs() as logs:
        for number in range(MOST_KNOWN + 10):
            warnings.check(tags, f"g{number}", "t", "ipv4:10.0.0.1:1")
    assert 1 <= len(logs) <= 8, "one address, one minute"
    with capture_logs() as logs:
        for number in (10, MOST_KNOWN + 9, 9):
            warnings.check(tags, f"g{number}", "t", "ipv4:10.0.0.2:1")
    assert [each["group"] for each in logs] == ["g9"], "the oldest ten are forgotten"


def test_consumers_of_a_group_with_different_expressions_are_each_told_once() -> None:
    warnings, own = FilterWarnings(), [parse_tag_filter("a && b"), parse_tag_filter("a or b")]
    with capture_logs() as logs:
        for number in range(200):
            warnings.check(own[number % 2], "g", "t", f"ipv4:10.0.0.{number}:1")
    assert [each["tags"] for each in logs] == [["'a && b'"], ["'a or b'"]]
