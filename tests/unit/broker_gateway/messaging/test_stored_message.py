"""Records on their way to a consumer: what is damaged is passed over, and told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from broker_gateway.messaging.stored_message import MessageReader, StoredMessage
from lakebroker_testing.broker import InProcessBroker
from store.errors import RecordError


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.send("t", b"body", message_id="0A" * 16, keys=["k"], tag="a")
        yield broker


def place(broker: InProcessBroker) -> tuple[int, int]:
    """Physical offset and size."""
    places, sizes, _ = broker.store.index.entries("t", 0, 0, 1)
    return int(places[0]), int(sizes[0])


def test_a_message_has_its_own_properties_and_none_of_the_brokers(broker: InProcessBroker) -> None:
    stored = MessageReader(broker.store).read(*place(broker))
    assert stored is not None
    assert (bytes(stored.view.body), stored.body_length, stored.message_id) == (b"body", 4, "0A" * 16)
    assert {name: stored.properties[name] for name in ("KEYS", "TAGS")} == {"KEYS": "k", "TAGS": "a"}
    assert "__CRC32#" not in stored.properties


def test_what_cannot_be_read_is_none_and_told_once(broker: InProcessBroker) -> None:
    offset, size = place(broker)
    reader = MessageReader(broker.store)
    with capture_logs() as logs:
        assert reader.read(offset, 0) is None
        assert logs == [], "there is nothing to be read"
        for _ in range(3):
            assert reader.read(offset + 1, size) is None
            assert reader.read(1 << 40, size) is None
    (line,) = logs
    assert line["physical_offset"] == offset + 1
    assert "lakebroker store verify" in line["event"]


@pytest.mark.parametrize("cut", [0, 1, 50, -1])
def test_no_part_of_a_record_is_one(broker: InProcessBroker, cut: int) -> None:
    offset, size = place(broker)
    whole = broker.store.read(offset, size)
    with pytest.raises(RecordError):
        StoredMessage(whole[:cut])
    StoredMessage(whole)
