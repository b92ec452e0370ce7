"""Bodies: round trips, Java's forms, wrong ones."""

from __future__ import annotations

import contextlib
import json
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_gateway.protocol.body.registration import MAX_DECOMPRESSED, RegisterBrokerBody
from broker_gateway.protocol.body.route import (
    BrokerData,
    BrokerMemberGroup,
    ClusterInfo,
    QueueData,
    TopicRouteData,
)
from broker_gateway.protocol.body.tables import KVTable, TopicList
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import Version
from broker_gateway.protocol.errors import BodyError, RequestError
from broker_gateway.protocol.fields import Fields

NAME = st.from_regex(r"\A[%|a-zA-Z0-9_-]{1,40}\Z")
INT32 = st.integers(0, (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VERSIONS = st.builds(DataVersion, INT64, INT64, INT64)
TOPICS = st.builds(
    TopicConfig,
    NAME,
    INT32,
    INT32,
    INT32,
    st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    attributes=st.dictionaries(TEXT, TEXT, max_size=3),
)
BODIES = st.builds(
    lambda version, topics, servers: RegisterBrokerBody(
        version, {each.topic_name: each for each in topics}, tuple(servers)
    ),
    VERSIONS,
    st.lists(TOPICS, max_size=5),
    st.lists(TEXT, max_size=3),
)
MAPPING = {
    "bname": "broker-a",
    "currIdMap": {0: 0, 3: 1},
    "dirty": False,
    "epoch": 5,
    "scope": "__global__",
    "topic": "static",
    "totalQueues": 4,
}


@given(BODIES, st.booleans())
def test_registration_round_trip(body: RegisterBrokerBody, compress: bool) -> None:
    assert RegisterBrokerBody.decode(body.encode(compress=compress), Version.V5_5_0) == body


@pytest.mark.parametrize("compress", [False, True])
def test_static_topics_are_carried(compress: bool) -> None:
    body = RegisterBrokerBody(topic_queue_mapping_info_map={"static": MAPPING})
    assert RegisterBrokerBody.decode(body.encode(compress=compress), Version.V5_0_0) == body


def test_compressed_registration_before_5_0_has_no_mappings() -> None:
    parts = [b'{"counter":3,"stateVersion":1,"timestamp":2}', b"orders 8 4 6 SINGLE_TAG ", b'["f:1"]']
    data = struct.pack(">i", len(parts[0])) + parts[0] + struct.pack(">i", 1)
    data += b"".join(struct.pack(">i", len(each)) + each for each in parts[1:])
    body = RegisterBrokerBody.decode(zlib.compress(data), Version.V4_9_4)
    assert body == RegisterBrokerBody(
        DataVersion(1, 2, 3), {"orders": TopicConfig("orders", 8, 4, 6)}, ("f:1",)
    )


def test_registration_before_3_0_11_is_the_wrapper_itself() -> None:
    text = {"dataVersion": {"counter": 1}, "topicConfigTable": {"t": {"topicName": "t", "perm": 4}}}
    body = RegisterBrokerBody.decode(json.dumps(text).encode(), Version.V3_0_11 - 1)
    assert body == RegisterBrokerBody(DataVersion(0, 0, 1), {"t": TopicConfig("t", perm=4)})
    assert RegisterBrokerBody.decode(b"", Version.V3_0_11 - 1) == RegisterBrokerBody()


def compressed(*parts: bytes | int) -> bytes:
    return zlib.compress(
        b"".join(
            struct.pack(">i", each) if isinstance(each, int) else struct.pack(">i", len(each)) + each
            for each in parts
        )
    )


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{}}", "cannot be read"),
        (b"[]", "not a JSON object"),
        (b"x\x9cgarbage", "cannot be unpacked"),
        (zlib.compress(b"")[:-2], "cut off"),
        (zlib.compress(bytes(MAX_DECOMPRESSED + 1)), "unpacks to more than"),
        (compressed(), "ends before the data version"),
        (compressed(1 << 20), "1048576 bytes, where 0 are left"),
        (compressed(-1), "-1 bytes"),
        (compressed(b"{}"), "ends before the number of topics"),
        (compressed(b"{}", -1), "-1 topics"),
        (compressed(b"{}", 1 << 30), "1073741824 topics"),
        (compressed(b"{}", 2, b"t 1 1 6 SINGLE_TAG {}"), "ends before a topic"),
        (compressed(b"{}", 1, b"t 1 1"), "queues twice"),
        (compressed(b"{}", 1, b"t x 1 6 SINGLE_TAG"), "readQueueNums 'x' of topic 't' is not between"),
        (compressed(b"{}", 1, b"t 1 1 99999999999 SINGLE_TAG"), "perm '99999999999'"),
        (compressed(b"{}", 1, b"\xff 1 1 6 SINGLE_TAG"), "no UTF-8"),
        (compressed(b"{}", 1, b" 1 1 6 SINGLE_TAG"), "topic name ''"),
        (compressed(b"{}", 1, b"a\nb 1 1 6 SINGLE_TAG"), "printable"),
        (compressed(b"{}", 0, b"{}"), "not an array"),
        (compressed(b"{}", 0, b"[1]"), "holds 1, not a text"),
        (compressed(b"{}", 0, b"[]", 1), "ends before a mapping"),
        (compressed(b"{}", 0, b"[]", 1, b"{}"), "has no topic"),
        (b'{"topicConfigSerializeWrapper":[]}', "not a JSON object"),
        (b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"t":{"perm":6}}}}', "has no topicName"),
        (b'{"filterServerList":["' + b"x" * 301 + b'"]}', "300 characters are allowed"),
        (b'{"filterServerList":[' + b'"x",' * 1001 + b'"x"]}', "1002 filter servers"),
    ],
)
def test_broken_registrations_are_named(data: bytes, named: str) -> None:
    with pytest.raises(BodyError) as caught:
        RegisterBrokerBody.decode(data, Version.V5_5_0)
    assert named in str(caught.value)


@given(st.binary(max_size=200), st.integers(0, 600))
def test_any_bytes_are_a_registration_or_an_error(data: bytes, version: int) -> None:
    for each in (data, zlib.compress(data)):
        with contextlib.suppress(BodyError):  # and no other error
            assert isinstance(RegisterBrokerBody.decode(each, version), RegisterBrokerBody)


def test_route_as_java_writes_it() -> None:
    text = (
        '{"brokerDatas":[{"brokerAddrs":{0:"h:1",1:"h:2"},"brokerName":"b","cluster":"c",'
        '"enableActingMaster":false}],"filterServerTable":{"h:1":["f:1"]},"queueDatas":[{"brokerName":"b",'
        '"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":8}]}'
    )
    route = TopicRouteData.decode(text.encode())
    assert route == TopicRouteData(
        (QueueData("b", 4, 8),), (BrokerData("c", "b", {0: "h:1", 1: "h:2"}),), {"h:1": ["f:1"]}
    )
    assert route.encode().decode() == text
    assert TopicRouteData.decode(route.encode(standard=True)) == route
    assert json.loads(route.encode(standard=True))["brokerDatas"][0]["brokerAddrs"] == {
        "0": "h:1",
        "1": "h:2",
    }


def test_other_bodies_round_trip() -> None:
    broker = BrokerData("c", "b", {0: "h:1"}, True, "zone")
    info = ClusterInfo({"b": broker}, {"c": ["b"]})
    assert ClusterInfo.decode(info.encode()) == info
    group = BrokerMemberGroup("c", "b", {0: "h:1", 2: "h:2"})
    assert BrokerMemberGroup.decode(group.encode()) == group
    assert group.encode() == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"h:1",2:"h:2"},"brokerName":"b","cluster":"c"}}'
    )
    topics = TopicList(["a", "b"], "h:1")
    assert TopicList.decode(topics.encode()) == topics
    assert KVTable.decode(KVTable({"k": "v"}).encode()) == KVTable({"k": "v"})
    assert DataVersion.decode(b'{"counter":5,"timestamp":6}') == DataVersion(0, 6, 5)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda f: f.text("none"), "the custom field <none> is null"),
        (lambda f: f.long("none"), "the custom field <none> is null"),
        (lambda f: f.long("text"), "text 'x' is no integer of 64 bits"),
        (lambda f: f.long("huge"), "huge '9223372036854775808' is no integer"),
        (lambda f: f.small("big"), "big '2147483648' is no integer of 32 bits"),
        (lambda f: f.name("empty"), "empty ''"),
        (lambda f: f.name("lines"), "printable"),
        (lambda f: f.name("long"), "1 to 255"),
    ],
)
def test_fields_name_what_is_wrong(call: object, named: str) -> None:
    fields = Fields(
        {
            "text": "x",
            "huge": str(1 << 63),
            "big": str(1 << 31),
            "empty": "",
            "lines": "a\nb",
            "long": "x" * 256,
        }
    )
    with pytest.raises(RequestError) as caught:
        call(fields)  # type: ignore[operator]
    assert named in str(caught.value)


def test_fields_are_read_as_java_does() -> None:
    fields = Fields({"yes": "TRUE", "no": "1", "n": "-5", "plus": "+7"})
    assert fields.boolean("yes")
    assert not fields.boolean("no", default=True)
    assert fields.boolean("none", default=True)
    assert fields.optional_boolean("none") is None
    assert (fields.long("n"), fields.small("plus"), fields.small("none", 3)) == (-5, 7, 3)
    assert fields.optional_long("none") is None
