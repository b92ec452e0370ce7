"""Replies written as bytes are those of the plain path."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker_gateway.api.grpc import shortcuts
from broker_gateway.api.grpc.send import send_response
from broker_gateway.api.grpc.send_checks import Limits, checked_properties, encoded_properties
from broker_gateway.api.grpc.settlement import ack_response
from broker_gateway.api.grpc.status import OK as OK_STATUS
from broker_gateway.api.grpc.status import status
from broker_gateway.messaging.outcome import OK, Outcome, Reason, ServiceError
from broker_gateway.messaging.stored_message import StoredMessage
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from store.errors import RecordError
from store.log.record import Host, PendingRecord, encode_properties, encode_record
from tests.suite.evidence import rounds

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
NAMES = st.text("abc%-_", min_size=1, max_size=150)
KNOWN = st.sampled_from(
    [
        "UNIQ_KEY",
        "TAGS",
        "KEYS",
        "__SHARDINGKEY",
        "__LITE_TOPIC",
        "TRACE_CONTEXT",
        "__BORNHOST",
        "TRAN_MSG",
        "DELAY",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "TIMER_DELIVER_MS",
        "_SYS_MSG_PRIORITY_",
        "WAIT",
    ]
)
LONG = st.integers(0, (1 << 62) - 1)
MS = st.integers(0, 253_402_300_799_999)
LIMITS = Limits(1 << 20, 64, 8, 4096, True, 30_000)


@given(st.lists(st.tuples(TEXT, LONG), max_size=4))
def test_sent(entries: list[tuple[str, int]]) -> None:
    ids, offsets = [each.encode() for each, _ in entries], [offset for _, offset in entries]
    plain = send_response(OK_STATUS, ids, offsets)
    found = rpc.SendMessageResponse.FromString(shortcuts.sent(ids, offsets))
    assert found == plain
    if all(ids):  # an empty id is none that a send takes
        assert shortcuts.sent(ids, offsets) == plain.SerializeToString()


OUTCOMES = (
    OK,
    Outcome(Reason.INVALID_RECEIPT_HANDLE, "void"),
    Outcome(Reason.BAD_REQUEST, "x" * 3000),
)


@given(
    st.lists(
        st.tuples(TEXT | st.just("é" * 100), TEXT | st.just("h" * 2000), st.sampled_from(OUTCOMES)),
        min_size=1,
        max_size=4,
    )
)
def test_acked(entries: list[tuple[str, str, Outcome]]) -> None:
    asked = [rpc.AckMessageEntry(message_id=one, receipt_handle=other) for one, other, _ in entries]
    plain = ack_response(asked, [status(each) for *_, each in entries])
    found = shortcuts.acked([each[:2] for each in entries], [each for *_, each in entries])
    assert found == plain.SerializeToString()


@given(
    sizes=st.tuples(st.integers(0, 200), st.integers(0, 200)),
    texts=st.lists(st.sampled_from("aZ0\u00e9"), min_size=1, max_size=40),
    outcome=st.sampled_from([OK, Outcome(Reason.INVALID_RECEIPT_HANDLE, "gone \u00e9" * 30)]),
)
def test_acked_with_ids_and_handles_of_one_length(
    sizes: tuple[int, int], texts: list[str], outcome: Outcome
) -> None:
    entries = [(text * sizes[0], text * sizes[1]) for text in texts]
    asked = [rpc.AckMessageEntry(message_id=one, receipt_handle=other) for one, other in entries]
    plain = ack_response(asked, [status(outcome)] * len(entries))
    assert shortcuts.acked(entries, [outcome] * len(entries)) == plain.SerializeToString()


@settings(max_examples=rounds(50, 300), deadline=None)
@given(
    topic=NAMES,
    body=st.binary(max_size=300),
    known=st.dictionaries(KNOWN, TEXT, max_size=6),
    user=st.dictionaries(TEXT.filter(bool), TEXT, max_size=1),
    born=MS,
    stored=MS,
    queue=st.tuples(st.integers(0, 1 << 20), LONG),
    flag=st.sampled_from([0, 1]),
    ipv6=st.booleans(),
    delivery=st.tuples(st.integers(0, 1 << 20), st.integers(0, 43_200_000)),
)
@example("t", b"", {}, {}, 0, 0, (0, 0), 0, False, (1, 0))
@example("%DLQ%g", b"x", {"TAGS": ""}, {}, 1, 1, (0, 0), 0, True, (1, 10_000))
@example("t", b"x", {"_SYS_MSG_PRIORITY_": "2147483647"}, {}, 1, 1, (0, 0), 0, False, (1, 10_000))
@example("t", b"x", {"_SYS_MSG_PRIORITY_": "2147483648"}, {}, 1, 1, (0, 0), 0, False, (1, 10_000))
@example(
    "t",
    b"x",
    {"_SYS_MSG_PRIORITY_": "-1", "DLQ_ORIGIN_TOPIC": "o", "DLQ_ORIGIN_MESSAGE_ID": "i"},
    {},
    1,
    1,
    (0, 0),
    0,
    False,
    (1, 0),
)
def test_received(
    topic: str,
    body: bytes,
    known: dict[str, str],
    user: dict[str, str],
    born: int,
    stored: int,
    queue: tuple[int, int],
    flag: int,
    ipv6: bool,
    delivery: tuple[int, int],
) -> None:
    host = Host("2001:db8::1" if ipv6 else "10.0.0.1", 10911)
    pending = PendingRecord(
        topic, queue[0], body, encode_properties(known | user), born, host.packed, sys_flag=flag
    )
    data = b"".join(
        encode_record(
            pending,
            queue_offset=queue[1],
            physical_offset=77,
            store_timestamp=stored,
            store_host=host.packed,
            append_crc=True,
        )
    )
    message = StoredMessage(memoryview(data))
    handle = "h" * 28
    plain = shortcuts.plain(message, topic, handle, *delivery)
    assert rpc.ReceiveMessageResponse.FromString(shortcuts.received(message, topic, handle, *delivery)) == (
        rpc.ReceiveMessageResponse.FromString(plain)
    )
    assert shortcuts.received(message, topic, handle, *delivery) == plain


def test_what_is_no_record_is_refused() -> None:
    host = Host("10.0.0.1", 1).packed
    data = b"".join(
        encode_record(
            PendingRecord("t", 0, b"body", b"", 1, host),
            queue_offset=0,
            physical_offset=0,
            store_timestamp=1,
            store_host=host,
            append_crc=True,
        )
    )
    for cut in range(len(data)):
        with pytest.raises(RecordError):
            StoredMessage(memoryview(data[:cut]))


@given(
    user=st.dictionaries(TEXT | st.sampled_from(["KEYS", "a\x07"]), TEXT | st.just("\x02"), max_size=10),
    tag=TEXT | st.sampled_from(["", "a|b", " ", "\x01"]),
    keys=st.lists(TEXT, max_size=2),
    born_host=st.sampled_from(["", "10.0.0.1", "elsewhere", "\x02"]),
    message_id=TEXT.filter(bool),
)
def test_properties_of_a_send(
    user: dict[str, str], tag: str, keys: list[str], born_host: str, message_id: str
) -> None:
    message = pb.Message(
        user_properties=user,
        system_properties=pb.SystemProperties(tag=tag, keys=keys, born_host=born_host, message_id=message_id),
    )
    host = Host("10.0.0.1", 5)

    def attempt(encode: Any) -> bytes | tuple[Reason, str]:
        try:
            return bytes(encode())
        except ServiceError as error:
            return error.reason, error.message

    system = message.system_properties
    fast = attempt(lambda: encoded_properties(message, system, message_id, tag, LIMITS, host, 1))
    assert fast == attempt(lambda: checked_properties(message, LIMITS, host, 1))


def test_long_texts_that_clients_choose_are_not_kept() -> None:
    """Each of its own, as peers send them who want this process's memory: hosts, names of properties, tags."""
    tracemalloc.start()
    try:
        for number in range(100):
            text = f"{number:05d}" * 2000
            properties = {"UNIQ_KEY": "m", "__BORNHOST": text, text: "value", "TAGS": text}
            pending = PendingRecord(
                "topic",
                0,
                b"",
                encode_properties(properties),
                1,
                Host("10.0.0.1", 1).packed,
                tags_code=number,
            )
            data = b"".join(encode_record(pending, 1, 2, 3, Host("10.0.0.1", 1).packed, append_crc=True))
            shortcuts.received(StoredMessage(memoryview(data)), "topic", "handle", 1, 1000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 18, "one text in four would be more"
