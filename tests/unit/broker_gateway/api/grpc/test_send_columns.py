"""The compiled path of a send gives the records of the plain one, and leaves to it whatever it would refuse."""

from __future__ import annotations

import random
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_gateway.api.grpc.send_checks import Limits, Peer, peer_of, pending_records
from broker_gateway.api.grpc.send_columns import SendColumns
from broker_gateway.messaging.broker_properties import BrokerProperties
from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.names import RESERVED_PROPERTIES
from broker_gateway.protocol.resource_names import resource_name
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp
from store.columns import PendingColumns
from store.log.record import PendingRecord, decode_properties
from tests.suite.evidence import rounds

LIMITS = Limits(2000, 64, 4, 200, True, 30_000)
BROKERS = BrokerProperties("DefaultRegion", "DefaultCluster", True)
T = TypeVar("T")
NOW = 1_700_000_000_123
TOPIC = Topic("orders", 8, 8)
PEERS = [peer_of("10.0.0.1:5000"), peer_of("[2001:db8::1]:5000"), peer_of("unix:/x")]


def mostly(usual: st.SearchStrategy[T], odd: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """`usual` in most examples, so that most messages are taken."""
    return st.sampled_from([usual] * 24 + [odd]).flatmap(lambda chosen: chosen)


USUAL = st.text("abcXYZ059 _-%", max_size=12)
TEXT = mostly(USUAL, st.text(st.characters(codec="utf-8"), max_size=6))
NAME = mostly(st.text("abcXYZ059_-%", min_size=1, max_size=12), TEXT)


@pytest.fixture(scope="module")
def columns() -> SendColumns:
    return SendColumns(LIMITS)


def plain(request: bytes, peer: Peer) -> tuple[list[PendingRecord], list[bytes]]:
    messages = rpc.SendMessageRequest.FromString(request).messages
    return pending_records(TOPIC, 3, messages, peer, LIMITS, NOW, BROKERS)


def by_columns(records: PendingColumns) -> list[PendingRecord]:
    records.topic, records.queue_id, records.tail = TOPIC.name, 3, BROKERS.encoded(TOPIC.name)
    return records.records()


def assert_same(request: bytes, peer: Peer, columns: SendColumns) -> bool:
    """Whether the compiled path took it; then both paths agree."""
    usual = columns.take(request, peer, NOW)
    if usual is None:
        return False
    parsed = rpc.SendMessageRequest.FromString(request)
    assert usual.topic == resource_name(parsed.messages[0].topic)
    expected, message_ids = plain(_one_topic(request), peer)
    assert usual.message_ids == message_ids
    assert usual.body_bytes == sum(len(each.body) for each in expected)
    found = by_columns(usual.records)
    tails = len(found) * len(usual.records.tail)
    assert usual.records.size + tails == sum(len(each.body) + len(each.properties) for each in found)
    for one, other, message in zip(found, expected, parsed.messages, strict=True):
        one.body = bytes(one.body)
        if len(message.user_properties) > 1:  # the plain path has them in the order of a hash table
            assert decode_properties(one.properties) == decode_properties(other.properties)
            one.properties = other.properties
        if len(peer.packed) > 8:
            other.sys_flag &= ~0x10  # set when the record is written
        assert one == other
    return True


def _one_topic(request: bytes) -> bytes:
    """The request with TOPIC for every message, which all have the same topic."""
    parsed = rpc.SendMessageRequest.FromString(request)
    assert len({each.topic.SerializeToString() for each in parsed.messages}) == 1
    for each in parsed.messages:
        each.topic.CopyFrom(pb.Resource(name=TOPIC.name))
    return parsed.SerializeToString()


def usual_message(**fields: object) -> pb.Message:
    system = pb.SystemProperties(message_id="01A", message_type=pb.NORMAL, born_host="host")
    system.born_timestamp.FromMilliseconds(NOW - 5)
    for name, value in fields.items():
        setattr(system, name, value)
    return pb.Message(topic=pb.Resource(name="orders"), body=b"body", system_properties=system)


messages = st.builds(
    pb.Message,
    topic=mostly(st.just(pb.Resource(name="orders")), st.just(pb.Resource(name="o", resource_namespace="n"))),
    user_properties=mostly(
        st.dictionaries(NAME, TEXT, max_size=3),
        st.dictionaries(mostly(NAME, st.sampled_from(sorted(RESERVED_PROPERTIES))), TEXT, max_size=5),
    ),
    body=mostly(st.binary(min_size=1, max_size=40), st.sampled_from([b"", b"x" * 2000, b"x" * 2001])),
    system_properties=st.builds(
        pb.SystemProperties,
        tag=mostly(st.none() | NAME, TEXT | st.sampled_from(["a|b", " ", "\x7f"])),
        keys=st.lists(mostly(NAME, st.just(" ") | TEXT), max_size=3),
        message_id=mostly(NAME, st.sampled_from(["", " ", "x" * 255, "x" * 256])),
        body_encoding=mostly(st.sampled_from([0, 1, 2]), st.sampled_from([3, 9])),
        message_type=mostly(st.just(1), st.sampled_from([0, 2, 5, 99])),
        born_timestamp=st.one_of(
            st.none(),
            mostly(
                st.builds(Timestamp, seconds=st.integers(0, NOW), nanos=st.integers(0, 10**9 - 1)),
                st.builds(
                    Timestamp,
                    seconds=st.integers(-1, 1 << 50) | st.integers(-(2**63), 2**63 - 1),
                    nanos=st.integers(-1, 10**9) | st.integers(-(2**31), 2**31 - 1),
                ),
            ),
        ),
        born_host=mostly(
            st.sampled_from(["", "10.0.0.1", "10.0.0.2", "host", "2001:db8::1"]), st.just("\x01")
        ),
        queue_id=mostly(st.integers(0, 1 << 20), st.just(-1)),
        message_group=mostly(st.none(), st.just("g")),
        trace_context=mostly(st.none(), st.just("t")),
        priority=mostly(st.none(), st.just(1)),
        body_digest=mostly(st.none(), st.just(pb.Digest(type=pb.CRC32, checksum="0"))),
    ),
)


@settings(max_examples=rounds(50, 400), deadline=None)
@given(
    asked=st.builds(rpc.SendMessageRequest, messages=st.lists(messages, max_size=3)),
    peer=st.sampled_from(PEERS),
)
@example(asked=rpc.SendMessageRequest(), peer=PEERS[0])
def test_same_records(asked: rpc.SendMessageRequest, peer: Peer, columns: SendColumns) -> None:
    assert_same(asked.SerializeToString(), peer, columns)


@settings(max_examples=rounds(50, 400), deadline=None)
@given(
    asked=st.builds(rpc.SendMessageRequest, messages=st.lists(messages, min_size=1, max_size=2)),
    seed=st.integers(0, 1 << 32),
)
def test_damaged_requests(asked: rpc.SendMessageRequest, seed: int, columns: SendColumns) -> None:
    """What the plain path refuses, or protobuf cannot read, is not taken."""
    source = random.Random(seed)
    data = bytearray(asked.SerializeToString())
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(data) + 1)
        kind = source.randrange(4)
        if kind == 0:
            del data[at : at + source.randint(1, 4)]
        elif kind == 1:
            data[at:at] = source.randbytes(source.randint(1, 4))
        elif at < len(data):
            data[at] = source.choice([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ 1 << source.randrange(8)])
    assert_same(bytes(data), PEERS[0], columns)


@pytest.mark.parametrize(
    "message",
    [
        usual_message(),
        usual_message(tag="TagA"),
        usual_message(tag="x" * 100),
        usual_message(born_host="10.0.0.1"),
        usual_message(body_encoding=pb.GZIP),
        usual_message(queue_id=7),
        pb.Message(
            topic=pb.Resource(name="orders"),
            user_properties={"a": "1", "b": "", "c": "3"},
            body=b"\xff\x00" * 900,
            system_properties=pb.SystemProperties(
                message_id="01A", message_type=pb.NORMAL, keys=["k1", "", "k2"], tag="t"
            ),
        ),
    ],
)
def test_usual_requests_are_taken(message: pb.Message, columns: SendColumns) -> None:
    for count in (1, 3):
        request = rpc.SendMessageRequest(messages=[message] * count).SerializeToString()
        assert assert_same(request, PEERS[0], columns)


@pytest.mark.parametrize(
    "message",
    [
        usual_message(message_type=pb.FIFO, message_group="g"),
        usual_message(message_id=""),
        usual_message(message_id="x" * 256),
        usual_message(message_id="é"),
        usual_message(tag="a|b"),
        pb.Message(topic=pb.Resource(name="orders"), body=b"b"),
        pb.Message(body=b"b", system_properties=usual_message().system_properties),
    ],
)
def test_unusual_requests_are_not(message: pb.Message, columns: SendColumns) -> None:
    request = rpc.SendMessageRequest(messages=[usual_message(), message]).SerializeToString()
    assert columns.take(request, PEERS[0], NOW) is None


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_names_are_left_to_the_plain_path(name: str, columns: SendColumns) -> None:
    message = usual_message()
    message.user_properties[name] = "x"
    assert columns.take(rpc.SendMessageRequest(messages=[message]).SerializeToString(), PEERS[0], NOW) is None


def test_every_truncation(columns: SendColumns) -> None:
    request = rpc.SendMessageRequest(messages=[usual_message(tag="t"), usual_message()]).SerializeToString()
    for cut in range(len(request)):
        assert_same(request[:cut], PEERS[0], columns)


def test_too_many_messages_are_not_taken(columns: SendColumns) -> None:
    request = rpc.SendMessageRequest(messages=[usual_message()] * 1024).SerializeToString()
    assert assert_same(request, PEERS[0], columns)
    request += rpc.SendMessageRequest(messages=[usual_message()]).SerializeToString()
    assert columns.take(request, PEERS[0], NOW) is None
