"""Sending, receiving, settling, dead letters: plain gRPC against a gateway process."""

from __future__ import annotations

from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.messages import message
from tests.support.brokers.gateways import receive_all


def test_send_several_and_receive_with_everything_kept(client: Client, name: str) -> None:
    sent = client.send(
        name, b"one", b"two", b"three", tag="red", keys=["k1", "k2"], properties={"colour": "blau ä"}
    )
    assert sent.status.code == pb.OK
    assert [entry.offset for entry in sent.entries] == [0, 1, 2]
    received = receive_all(client, name, name, 3)
    assert [m.body for m in received] == [b"one", b"two", b"three"]
    first = received[0]
    assert first.system_properties.message_id == sent.entries[0].message_id
    assert first.system_properties.tag == "red"
    assert list(first.system_properties.keys) == ["k1", "k2"]
    assert dict(first.user_properties) == {"colour": "blau ä"}
    assert first.system_properties.delivery_attempt == 1
    assert first.system_properties.body_digest.checksum == "F97C5D29941BFB1B2FDAB0874906AB82"
    assert client.ack(name, name, *received).status.code == pb.OK
    assert client.receive(name, name) == (pb.MESSAGE_NOT_FOUND, [])


def test_tag_filters_let_only_named_tags_through(client: Client, name: str) -> None:
    for tag in ("a", "b", "c", "Aa", "BB"):  # Aa and BB have the same hash in Java
        client.send(name, tag.encode(), tag=tag)
    wanted = pb.FilterExpression(type=pb.TAG, expression="a || BB")
    assert sorted(m.body for m in receive_all(client, name, name, 2, filter=wanted)) == [b"BB", b"a"]
    assert client.receive(name, name, filter=wanted)[1] == []


def test_redelivery_after_the_invisible_time_counts_attempts_and_voids_the_handle(
    client: Client, name: str
) -> None:
    client.send(name, b"hidden")
    hidden = client.receive(name, name, invisible_ms=60_000)[1]
    assert len(hidden) == 1
    assert client.receive(name, name)[1] == []
    assert client.ack(name, name, *hidden).status.code == pb.OK
    client.send(name, b"again")
    (first,) = client.receive(name, name, invisible_ms=300)[1]
    (second,) = receive_all(client, name, name, 1)
    assert second.system_properties.delivery_attempt == 2
    assert client.ack(name, name, first).entries[0].status.code == pb.INVALID_RECEIPT_HANDLE
    assert client.ack(name, name, second).status.code == pb.OK
    assert client.ack(name, name, second).status.code == pb.INVALID_RECEIPT_HANDLE


def test_change_invisible_duration_answers_a_new_handle(client: Client, name: str) -> None:
    client.send(name, b"give back")
    (first,) = client.receive(name, name)[1]
    request = rpc.ChangeInvisibleDurationRequest(
        group=pb.Resource(name=name),
        topic=pb.Resource(name=name),
        receipt_handle=first.system_properties.receipt_handle,
        message_id=first.system_properties.message_id,
    )
    request.invisible_duration.FromMilliseconds(0)
    changed = client.call("ChangeInvisibleDuration", request)
    assert changed.status.code == pb.OK
    assert changed.receipt_handle != first.system_properties.receipt_handle
    assert client.call("ChangeInvisibleDuration", request).status.code == pb.INVALID_RECEIPT_HANDLE
    (second,) = receive_all(client, name, name, 1)
    assert second.system_properties.delivery_attempt == 2


def test_the_same_attempt_id_answers_the_same_messages(client: Client, name: str) -> None:
    client.send(name, b"x", b"y")
    first = receive_all(client, name, name, 2, attempt_id="attempt-1")
    again = client.receive(name, name, attempt_id="attempt-1")[1]
    assert [m.system_properties.receipt_handle for m in again] == [
        m.system_properties.receipt_handle for m in first
    ]
    assert client.receive(name, name, attempt_id="attempt-2")[1] == []


def test_dead_letters_after_the_last_attempt_and_by_hand(client: Client, name: str) -> None:
    client.send(name, b"poison", b"given up", tag="t")
    first, second = receive_all(client, name, name, 2)
    forwarded = client.call(
        "ForwardMessageToDeadLetterQueue",
        rpc.ForwardMessageToDeadLetterQueueRequest(
            group=pb.Resource(name=name),
            topic=pb.Resource(name=name),
            receipt_handle=second.system_properties.receipt_handle,
            message_id=second.system_properties.message_id,
        ),
    )
    assert forwarded.status.code == pb.OK
    (dead,) = receive_all(client, f"%DLQ%{name}", "readers", 1)
    assert dead.body == b"given up"
    assert dead.system_properties.message_id == second.system_properties.message_id
    assert dead.system_properties.dead_letter_queue.topic == name
    assert client.ack(name, name, second).status.code == pb.INVALID_RECEIPT_HANDLE
    assert client.ack(name, name, first).status.code == pb.OK


def test_routes_settings_and_assignments(client: Client, name: str) -> None:
    endpoints = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="gw.example", port=80)])
    route = client.call(
        "QueryRoute", rpc.QueryRouteRequest(topic=pb.Resource(name=name), endpoints=endpoints)
    )
    assert route.status.code == pb.OK
    assert [queue.id for queue in route.message_queues] == list(range(8))
    assert route.message_queues[0].broker.endpoints == endpoints
    assert pb.NORMAL in route.message_queues[0].accept_message_types
    assigned = client.call(
        "QueryAssignment",
        rpc.QueryAssignmentRequest(
            topic=pb.Resource(name=name), group=pb.Resource(name=name), endpoints=endpoints
        ),
    )
    assert [a.message_queue.id for a in assigned.assignments] == [-1]
    beat = client.call("Heartbeat", rpc.HeartbeatRequest(client_type=pb.PRODUCER))
    assert beat.status.code == pb.UNRECOGNIZED_CLIENT_TYPE


def with_changes(body: bytes = b"x", topic: str = "validation", **system: Any) -> rpc.SendMessageRequest:
    return rpc.SendMessageRequest(messages=[message(topic, body, **system)])


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (rpc.SendMessageRequest(), pb.MESSAGE_CORRUPTED),
        (with_changes(topic="no spaces"), pb.ILLEGAL_TOPIC),
        (with_changes(topic=""), pb.ILLEGAL_TOPIC),
        (with_changes(topic="x" * 128), pb.ILLEGAL_TOPIC),
        (with_changes(topic="rmq_sys_lakebroker_journal"), pb.ILLEGAL_TOPIC),
        (with_changes(body=b""), pb.MESSAGE_BODY_EMPTY),
        (with_changes(body=b"x" * ((4 << 20) + 1)), pb.MESSAGE_BODY_TOO_LARGE),
        (with_changes(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG),
        (with_changes(tag="  "), pb.ILLEGAL_MESSAGE_TAG),
        (with_changes(keys=["a\x01b"]), pb.ILLEGAL_MESSAGE_KEY),
        (with_changes(message_id=" "), pb.ILLEGAL_MESSAGE_ID),
        (with_changes(properties={"TAGS": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_changes(properties={"a": "\x02"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (with_changes(properties={f"p{n}": "v" for n in range(129)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_changes(properties={"p": "v" * 20_000}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
        (with_changes(body_digest=pb.Digest(type=pb.MD5, checksum="00")), pb.MESSAGE_CORRUPTED),
        (with_changes(body_encoding=77), pb.BAD_REQUEST),
        (with_changes(message_type=99), pb.BAD_REQUEST),
        (with_changes(message_type=pb.LITE), pb.ILLEGAL_LITE_TOPIC),
        (with_changes(message_group="g"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            rpc.SendMessageRequest(messages=[message("validation", b"a"), message("other", b"b")]),
            pb.MESSAGE_CORRUPTED,
        ),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_code(client: Client, request_: Any, code: int) -> None:
    answer = client.call("SendMessage", request_)
    assert answer.status.code == code, answer.status
    assert answer.status.message


def test_what_cannot_be_received_is_refused_with_its_code(client: Client, name: str) -> None:
    assert client.receive(name, "bad group")[0] == pb.ILLEGAL_CONSUMER_GROUP
    assert client.receive(name, "TOOLS_CONSUMER")[0] == pb.ILLEGAL_CONSUMER_GROUP
    assert client.receive(name, name, batch=0)[0] == pb.BAD_REQUEST
    assert client.receive(name, name, invisible_ms=1)[0] == pb.ILLEGAL_INVISIBLE_TIME
    assert client.receive(name, name, invisible_ms=43_200_001)[0] == pb.ILLEGAL_INVISIBLE_TIME
    sql = pb.FilterExpression(type=pb.SQL, expression="a = ")
    assert client.receive(name, name, filter=sql)[0] == pb.ILLEGAL_FILTER_EXPRESSION
    assert client.receive(name, name, filter=pb.FilterExpression(type=9))[0] == pb.ILLEGAL_FILTER_EXPRESSION
    assert client.receive(f"%DLQ%{name}", name)[0] == pb.TOPIC_NOT_FOUND
    for forged in ("", "x", "A" * 28, "_" * 28, "é" * 28, "A" * 100_000):
        fake = pb.Message(system_properties=pb.SystemProperties(receipt_handle=forged))
        assert client.ack(name, name, fake).status.code == pb.INVALID_RECEIPT_HANDLE


def test_a_call_without_client_id_is_refused(gateway: Any, name: str) -> None:
    anonymous = Client(gateway.address, client_id=None)
    assert anonymous.send(name, b"x").status.code == pb.CLIENT_ID_REQUIRED
    assert anonymous.receive(name, name)[0] == pb.CLIENT_ID_REQUIRED
    anonymous.channel.close()
