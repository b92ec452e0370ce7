"""Messages looked up in the local log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker_gateway.delivery.filters.message_filter import MessageFilter
from broker_gateway.delivery.filters.sql92 import parse_sql_filter
from broker_gateway.delivery.filters.tags import parse_tag_filter
from broker_gateway.protocol.codes import ResponseCode
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request
from store.log.record import decode_record

BY_AMOUNT = parse_sql_filter("amount > 5")


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        sent = [
            message("t", b"%d" % n, {"amount": str(n)}, tag=tag) for n, tag in enumerate(["Aa", "BB"] * 4)
        ]
        broker.call("SendMessage", send_request(*sent))
        yield broker


def pulled(broker: InProcessBroker, wanted: MessageFilter, offset: int, most: int) -> tuple[list[int], int]:
    """Queue offsets, and where the next pull goes on."""
    topic = broker.broker.catalog.topic("t")
    assert topic is not None
    found = broker.broker.administration.messages.pull(topic, 0, offset, most, wanted)
    assert found.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)
    offsets, position = [], 0
    while position < len(found.records):
        record = decode_record(found.records, position)
        offsets.append(record.queue_offset)
        position += record.size
    return offsets, found.next_offset


def test_a_pull_has_what_a_filter_by_properties_wants(broker: InProcessBroker) -> None:
    assert pulled(broker, BY_AMOUNT, 0, 32) == ([6, 7], 8)
    assert pulled(broker, BY_AMOUNT, 0, 1) == ([6], 7)


def test_of_a_filter_by_tag_the_reader_tells_equal_codes_apart(broker: InProcessBroker) -> None:
    assert pulled(broker, parse_tag_filter("Aa"), 0, 32) == ([0, 1, 2, 3, 4, 5, 6, 7], 8)
    assert pulled(broker, parse_tag_filter("C"), 0, 32) == ([], 8)
