"""Properties that the original adds to messages over gRPC: in the record, in answers to tools, not to gRPC consumers."""

from __future__ import annotations

import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_gateway.api.remoting.administration.shown_records import shown_record
from broker_gateway.config.broker_options import NAME_MAX_LENGTH
from broker_gateway.messaging.broker_properties import BrokerProperties, born_property, without_brokers
from broker_gateway.metadata.names import RETRY_TOPIC_MAX_LENGTH
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from lakebroker_testing.messages import message, send_request
from store.log.record import (
    Host,
    PendingRecord,
    decode_properties,
    decode_record,
    encode_properties,
    encode_record,
    offset_msg_id,
)
from tests.suite.evidence import rounds

ARCHIVE = Path(__file__).parents[3] / "data" / "rocketmq-5.5.0-store.tar.gz"
NOW = 1_700_000_000_123
ADDED = {
    "MSG_REGION": "DefaultRegion",
    "CLUSTER": "DefaultCluster",
    "PGROUP": "orders",
    "RECONSUME_TIME": "0",
    "TRACE_ON": "true",
}
HOST = Host("127.0.0.1", 10911)


@pytest.fixture(params=[False, True], ids=["plain", "compiled"])
def broker(request: pytest.FixtureRequest) -> Iterator[InProcessBroker]:
    with InProcessBroker(clock=ManualClock(NOW), retryMaxTimes="1") as broker:
        broker.create_topic("orders")
        broker.create_group("billing", retry_max_times=1)
        if request.param:
            assert broker.broker.load_compiled()
        yield broker


def pulled(broker: InProcessBroker, topic: str) -> list[dict[str, str]]:
    """Properties of a topic's messages as tools are given them."""
    found = broker.broker.catalog.topic(topic)
    assert found is not None
    data = broker.broker.administration.messages.pull(found, 0, 0, 32).records
    shown, position = [], 0
    while position < len(data):
        record = decode_record(data, position)
        shown.append(record.properties_map())
        assert decode_record(data[position : position + record.size]).body == record.body
        position += record.size
    return shown


def test_what_a_message_carries(broker: InProcessBroker) -> None:
    one = message("orders", b"one", {"colour": "red"}, tag="a", message_id="01A")
    one.system_properties.born_timestamp.FromMilliseconds(NOW - 5)
    two = message("orders", b"two", message_id="02B", trace_context="t")
    assert broker.call("SendMessage", send_request(one, two)).status.code == pb.OK
    own = {"UNIQ_KEY": "01A", "TAGS": "a", "colour": "red", "BORN_TIMESTAMP": str(NOW - 5)}
    later = {"UNIQ_KEY": "02B", "TRACE_CONTEXT": "t", "BORN_TIMESTAMP": str(NOW)}
    assert pulled(broker, "orders") == [own | ADDED, later | ADDED]
    entry = broker.store.index.entries("orders", 0, 0, 1)
    stored = broker.store.record(int(entry.offsets[0]), int(entry.sizes[0])).properties_map()
    assert stored.pop("__CRC32#")
    assert stored == own | ADDED
    _, received = broker.receive("orders", "billing")
    assert [dict(each.user_properties) for each in received] == [{"colour": "red"}, {}]
    assert [each.system_properties.message_type for each in received] == [pb.NORMAL] * 2


def test_options() -> None:
    with InProcessBroker(regionId="north", brokerClusterName="c1", traceOn="false") as broker:
        broker.create_topic("orders")
        broker.send("orders", b"one")
        (shown,) = pulled(broker, "orders")
        assert (shown["MSG_REGION"], shown["CLUSTER"], shown["TRACE_ON"]) == ("north", "c1", "false")


def test_the_attempt_that_a_message_names(broker: InProcessBroker) -> None:
    broker.send("orders", b"one", delivery_attempt=7)
    assert pulled(broker, "orders")[0]["RECONSUME_TIME"] == "7"


def test_messages_by_id_and_key(broker: InProcessBroker) -> None:
    broker.send("orders", b"one", message_id="01A", keys=["k"])
    messages = broker.broker.administration.messages
    starts = broker.store.index.entries("orders", 0, 0, 1).offsets
    topic = broker.broker.catalog.topic("orders")
    assert topic is not None
    by_offset = messages.by_physical_offset(int(starts[0]))
    (by_key,) = broker.run(messages.by_key(topic, "k", 10, 0, NOW + 1))
    assert by_key == by_offset
    properties = decode_record(by_offset).properties_map()
    assert properties == ADDED | {"UNIQ_KEY": "01A", "KEYS": "k", "BORN_TIMESTAMP": str(NOW)}


@pytest.mark.parametrize("end", ["", "restart", "crash"])
def test_dead_letters(broker: InProcessBroker, end: str) -> None:
    broker.send("orders", b"one", b"two")
    _, (one, _) = broker.receive("orders", "billing", invisible_ms=10_000)
    broker.dead_letter("orders", "billing", one)
    if end:
        getattr(broker, end)()
    broker.advance(11.0)
    assert len(broker.receive("orders", "billing", invisible_ms=10_000)[1]) == 1
    broker.advance(11.0)
    first, second = pulled(broker, "%DLQ%billing")
    starts = broker.store.index.entries("orders", 0, 0, 2).offsets.tolist()
    host = broker.store.store_host.packed
    for found, start in zip((first, second), starts, strict=True):
        assert found["ORIGIN_MESSAGE_ID"] == offset_msg_id(host, start)
        assert found["DELAY"] == "0"
        assert ADDED.items() <= found.items()
        assert not {"LB_ORIGIN", "LB_REASON", "__CRC32#"} & found.keys()
    assert not {"ORIGIN_GROUP", "1ST_POP_TIME"} & first.keys()
    assert (second["ORIGIN_GROUP"], second["1ST_POP_TIME"]) == ("billing", str(NOW))


def test_a_message_with_as_many_properties_as_are_taken_becomes_a_dead_letter(
    broker: InProcessBroker,
) -> None:
    low, high = 1, 40_000
    while low + 1 < high:  # the longest trace context that is taken
        middle = (low + high) // 2
        taken = broker.send("orders", b"x", trace_context="x" * middle).status.code == pb.OK
        low, high = (middle, high) if taken else (low, middle)
    assert low > 29_000
    last = broker.store.index.max_offset("orders", 0) - 1
    broker.reset("orders", "billing", 0, last)
    broker.send("orders", b"longest", trace_context="x" * low, message_id="é" * 255)
    for each in broker.receive("orders", "billing")[1]:
        assert broker.dead_letter("orders", "billing", each).status.code == pb.OK


def test_shown_records() -> None:
    def record(properties: bytes, *, crc: bool) -> bytes:
        pending = PendingRecord("orders", 3, b"body", properties, NOW, HOST.packed)
        return b"".join(encode_record(pending, 7, 4096, NOW, HOST.packed, crc))

    kept = encode_properties({"UNIQ_KEY": "1", "a": "LB_ORIGIN", "xLB_ORIGIN": "b"})
    own = encode_properties({"LB_ORIGIN": "0:1:2:1:gt", "LB_REASON": "because"})
    for properties in (kept, own + kept, kept + own):
        assert shown_record(record(properties, crc=True)) == record(kept, crc=False)
    assert shown_record(record(b"", crc=False)) == record(b"", crc=False)
    assert shown_record(record(b"k\x01v", crc=False)) == record(b"k\x01v", crc=False)
    torn = record(kept, crc=True)[:-3]
    assert shown_record(torn) == torn


@settings(max_examples=rounds(50, 300), deadline=None)
@given(
    parts=st.lists(
        st.sampled_from(
            [
                b"BORN_TIMESTAMP\x011",
                b"MSG_REGION\x01r",
                b"CLUSTER\x01c",
                b"TRACE_ON\x01true",
                b"TAGS\x01a",
                b"xBORN_TIMESTAMP\x01r",
                b"UNIQ_KEY\x01u",
                b"k\x01MSG_REGION",
                b"__CRC32#\x011234567890",
                b"",
                b"\x01v",
            ]
        ),
        max_size=8,
    ),
    ended=st.booleans(),
)
def test_what_is_left_out_is_the_brokers_own(parts: list[bytes], ended: bool) -> None:
    encoded = b"\x02".join(parts) + (b"\x02" if ended else b"")
    whole, kept = decode_properties(encoded), decode_properties(without_brokers(encoded))
    assert kept.items() <= whole.items()
    assert whole.keys() - kept.keys() <= {"BORN_TIMESTAMP", "MSG_REGION", "CLUSTER", "TRACE_ON", "__CRC32#"}


def test_what_we_store_is_left_out() -> None:
    own = encode_properties({"a": "b", "UNIQ_KEY": "1"})
    brokers = BrokerProperties("r", "c", trace_on=True).encoded("orders")
    crc = encode_properties({"__CRC32#": "1234567890"})
    for end in (b"", crc):
        assert without_brokers(own + born_property(NOW) + brokers + end) == own
    assert without_brokers(own + crc) == own + crc


def test_what_other_brokers_stored_is_not_remembered() -> None:
    """Behind BORN_TIMESTAMP they may have stored other properties, up to 32 KB, different in each message."""
    before_it = encode_properties({"a": "b"}) + born_property(NOW)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for n in range(500):
            other = before_it + encode_properties({"CLUSTER": "c", "trace": f"{n:030000}"})
            assert without_brokers(other) == other
        kept = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20, f"{kept} bytes are kept of 500 messages"


def test_the_longest_that_we_store_is_left_out() -> None:
    longest = BrokerProperties("r" * NAME_MAX_LENGTH, "c" * NAME_MAX_LENGTH, trace_on=False)
    tail = longest.encoded("x" * RETRY_TOPIC_MAX_LENGTH, -(1 << 31))
    own = encode_properties({"a": "b"})
    assert without_brokers(own + born_property(NOW) + tail) == own


def test_the_same_as_the_real_broker_stored(broker: InProcessBroker, tmp_path: Path) -> None:
    """A message that the real proxy took over gRPC, sent again here, is stored with the same properties."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (segment,) = (tmp_path / "store-cap" / "commitlog").glob("0*")
    data, position = segment.read_bytes(), 0
    compared = 0
    while size := int.from_bytes(data[position : position + 4], "big"):
        record = decode_record(data, position)
        position += size
        real = record.properties_map()
        if record.topic != "normal":
            continue
        if not compared:
            broker.create_topic("normal")
        one = message(
            "normal", b"one", {"p1": real["p1"]} if "p1" in real else {}, message_id=real["UNIQ_KEY"]
        )
        one.system_properties.tag = real["TAGS"]
        one.system_properties.keys.extend(real.get("KEYS", "").split())
        one.system_properties.born_host = real["__BORNHOST"]
        one.system_properties.born_timestamp.FromMilliseconds(int(real["BORN_TIMESTAMP"]))
        assert broker.call("SendMessage", send_request(one)).status.code == pb.OK
        assert pulled(broker, "normal")[compared] == real
        compared += 1
    assert compared > 3
