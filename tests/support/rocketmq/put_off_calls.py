"""Delayed and transactional messages over plain gRPC: what a server answers and delivers, with its names and times left out."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from broker_gateway.api.grpc.codec import timestamp
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing import messages
from lakebroker_testing.client import Client
from lakebroker_testing.messages import send_request
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings, producer_settings
from tests.support.waiting import LIMIT_S, wait_until

DELAYED, PAID, ANY, PLAIN = "delayed", "paid", "any", "plain"
TOPICS = {DELAYED: (1, "DELAY"), PAID: (1, "TRANSACTION"), ANY: (1, "MIXED"), PLAIN: (1, "NORMAL")}
OPTIONS = {
    "enableMixedMessageType": "true",
    "recallMessageEnable": "true",
    "transactionTimeOut": "2000",
    "transactionCheckInterval": "2000",
    "transactionOpBatchInterval": "100",
    "mappedFileSizeCommitLog": str(1 << 24),
}
"""Of both brokers. With its own interval, a real one asks again before it has written that a half is done with."""
_OWN = frozenset(
    (
        *("message_id", "born_timestamp", "store_timestamp", "receipt_handle", "born_host", "store_host"),
        *("queue_offset", "invisible_duration"),
    )
)
"""Fields that differ from server to server, and from send to send; the last one is set here and not there, of any message."""
TOLD_THERE = frozenset(
    ("TRACE_CONTEXT", "__transactionId__", "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS")
)
"""Properties of the broker that a real proxy shows among the user's: docs/differences.md."""
_DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Server:
    """One that is asked: a client of each of the topics."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.client = Client(address, "put-off-tester")

    def close(self) -> None:
        self.client.close()

    def send(self, *sent: pb.Message) -> rpc.SendMessageResponse:
        answer: rpc.SendMessageResponse = self.client.call("SendMessage", send_request(*sent))
        return answer

    def sent(self, *sent: pb.Message) -> rpc.SendMessageResponse:
        """The answer to a send that must be taken; a server that has just started is asked again."""

        def taken() -> rpc.SendMessageResponse | None:
            answer = self.send(*sent)
            return answer if answer.status.code == pb.OK else None

        found: rpc.SendMessageResponse = wait_until(taken)
        return found

    def received(self, topic: str, count: int, idle_s: float = 3.0) -> list[pb.Message]:
        """So many messages, acknowledged, and those that come within some seconds behind them."""
        group = f"{topic}-readers"
        found: list[pb.Message] = []
        deadline = time.monotonic() + LIMIT_S
        with TelemetryClient(
            self.address, "put-off-tester", consumer_settings(group, topic, pb.SIMPLE_CONSUMER)
        ):
            while time.monotonic() < deadline:
                if len(found) >= count:
                    deadline = min(deadline, time.monotonic() + idle_s)
                code, more = self.client.receive(topic, group, invisible_ms=60_000, wait_ms=5000)
                assert code in (pb.OK, pb.MESSAGE_NOT_FOUND), pb.Code.Name(code)
                if more:
                    self.client.ack(topic, group, *more)
                found += more
        return found

    def end(
        self, topic: str, sent: str, resolution: int, *, check: bool = False, message_id: str = ""
    ) -> str:
        """The code that the end of a transaction is answered with."""
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name=topic),
            message_id=message_id or sent,
            transaction_id=sent,
            resolution=resolution,
            source=pb.SOURCE_SERVER_CHECK if check else pb.SOURCE_CLIENT,
        )
        return name_of(self.client.call("EndTransaction", request).status)

    def recall(self, topic: str, handle: str) -> str:
        request = rpc.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)
        return name_of(self.client.call("RecallMessage", request).status)


def name_of(status: pb.Status) -> str:
    name: str = pb.Code.Name(status.code)
    return name


def message(topic: str, body: bytes, properties: dict[str, str] | None = None, **system: Any) -> pb.Message:
    """One that was born now, as official clients say: a real broker asks nobody about a half of 1970."""
    system.setdefault("born_timestamp", timestamp(now_ms()))
    return messages.message(topic, body, properties, **system)


def delayed(body: bytes, due_ms: int, topic: str = DELAYED, **system: Any) -> pb.Message:
    system.setdefault("message_type", pb.DELAY)
    return message(topic, body, delivery_timestamp=timestamp(due_ms), **system)


def described(received: pb.Message, due: dict[bytes, int] | None = None) -> dict[str, Any]:
    """All that a consumer gets of a message; its delivery time as the distance to that which it was sent with."""
    system: dict[str, Any] = {}
    for field, value in received.system_properties.ListFields():
        if field.name in _OWN:
            continue
        if field.name == "delivery_timestamp":
            value = value.ToMilliseconds() - (due or {}).get(received.body, 0)
        elif field.name == "body_digest":
            value = value.checksum
        elif field.name == "keys":
            value = list(value)
        system[field.name] = value
    user = {name: value for name, value in received.user_properties.items() if name not in TOLD_THERE}
    return {"body": received.body, "user": user, **system}


def delays(server: Server) -> dict[str, Any]:
    """Messages of several delivery times: what is answered, in what order they come, and as what."""
    server.sent(delayed(b"first", now_ms() - 1))
    server.received(DELAYED, 1, 0)
    start = now_ms() + 2000
    due = {
        b"4000": start + 4000,
        b"1001": start + 1001,
        b"2500": start + 2500,
        b"second": (start + 6000) // 1000 * 1000,
    }
    past = {b"past": start - 10_000, b"longpast": 1000, b"epoch": 0}
    answers = []
    for body, time_ms in {**due, **past}.items():
        sent = delayed(
            body,
            time_ms,
            tag="red",
            keys=["k1", "k2"],
            trace_context="trace",
            message_id=f"ID-{body.decode()}",
        )
        sent.user_properties["colour"] = "ä"
        answers.append(server.sent(sent).entries[0])
    handles = {}
    for (body, time_ms), entry in zip({**due, **past}.items(), answers, strict=True):
        if body not in due:
            continue
        parts = base64.urlsafe_b64decode(entry.recall_handle).decode().split(" ")
        handles[body] = (*parts[:3], int(parts[3]) - time_ms // 1000 * 1000, parts[4])
    found = server.received(DELAYED, len(due) + len(past))
    return {
        "entries": [(name_of(each.status), each.message_id, each.transaction_id) for each in answers],
        "handles": handles,
        "order": [each.body for each in found if each.body in due],
        "received": sorted(
            (described(each, due | past) for each in found), key=lambda each: bytes(each["body"])
        ),
    }


def recalls(server: Server) -> dict[str, Any]:
    """Recalls in time and not, and what was delivered all the same."""

    def handle_of(body: bytes, wait_ms: int) -> str:
        entry = server.sent(delayed(body, now_ms() + wait_ms, message_id=body.decode())).entries[0]
        handle: str = entry.recall_handle
        return handle

    def forged(handle: str, part: int, change: Callable[[str], str]) -> str:
        parts = base64.urlsafe_b64decode(handle).decode().split(" ")
        parts[part] = change(parts[part])
        return base64.urlsafe_b64encode(" ".join(parts).encode()).decode()

    taken, kept = handle_of(b"taken", 6000), handle_of(b"kept", 12_000)
    answers = {"in time": server.recall(DELAYED, taken), "twice": server.recall(DELAYED, taken)}
    answers |= {
        "another topic": server.recall(ANY, kept),
        "a missing topic": server.recall("missing", kept),
        "empty": server.recall(DELAYED, ""),
        "no base64": server.recall(DELAYED, "no base64!"),
        "another version": server.recall(DELAYED, forged(kept, 0, lambda _: "v2")),
        "another broker": server.recall(DELAYED, forged(kept, 2, lambda _: "broker-z")),
        "a past time": server.recall(DELAYED, forged(kept, 3, lambda _: str(now_ms() - 60_000))),
        "a time too far away": server.recall(
            DELAYED, forged(kept, 3, lambda _: str(now_ms() + 30 * _DAY_MS))
        ),
        "no time": server.recall(DELAYED, forged(kept, 3, lambda _: "soon")),
        "another time": server.recall(DELAYED, forged(kept, 3, lambda text: str(int(text) + 5000))),
        "another message": server.recall(DELAYED, forged(kept, 4, lambda _: "nobody")),
    }
    found = [each.body for each in server.received(DELAYED, 1)]
    answers["too late"] = server.recall(DELAYED, kept)
    return {"answers": answers, "received": found}


def transactions(server: Server) -> dict[str, Any]:
    """Transactions that their producer ends, and those that it is asked about."""
    half_seen = threading.Event()
    asked: list[dict[str, Any]] = []
    ends: list[str] = []

    def answer(command: rpc.TelemetryCommand) -> Iterable[rpc.TelemetryCommand]:
        orphan = command.recover_orphaned_transaction_command
        body = orphan.message.body
        asked.append(described(orphan.message))
        if body == b"unknown, then commit":
            ends.append(server.end(PAID, orphan.transaction_id, pb.COMMIT, check=True))
        elif body == b"unknown, then rollback":
            ends.append(server.end(PAID, orphan.transaction_id, pb.ROLLBACK, check=True))
            half_seen.set()
        return ()

    def half(body: bytes, **system: Any) -> str:
        system.setdefault("message_id", body.decode())
        sent = message(
            PAID, body, {"colour": "ä"}, message_type=pb.TRANSACTION, tag="red", keys=["k"], **system
        )
        entry = server.sent(sent).entries[0]
        transaction_id: str = entry.transaction_id
        return transaction_id

    found: dict[str, Any] = {}
    with TelemetryClient(server.address, "put-off-tester", producer_settings(PAID)) as producer:
        server.sent(message(PLAIN, b"known"))
        committed, rolled_back = half(b"committed"), half(b"rolled back")
        found["same id"] = committed == "committed"
        found["commit"] = server.end(PAID, committed, pb.COMMIT)
        found["rollback"] = server.end(PAID, rolled_back, pb.ROLLBACK)
        found["commit twice"] = server.end(PAID, committed, pb.COMMIT)
        found["commit, then rollback"] = server.end(PAID, committed, pb.ROLLBACK)
        found["rollback, then commit"] = server.end(PAID, rolled_back, pb.COMMIT)
        found["unknown id"] = server.end(PAID, "nobody", pb.COMMIT)
        found["empty id"] = server.end(PAID, "", pb.COMMIT, message_id="x")
        found["another topic"] = server.end(ANY, half(b"of another topic"), pb.COMMIT)
        found["a missing topic"] = server.end("missing", "of another topic", pb.COMMIT)
        found["unspecified"] = server.end(PAID, half(b"unspecified"), pb.TRANSACTION_RESOLUTION_UNSPECIFIED)
        producer.answers = answer
        half(b"unknown, then commit")
        half(b"unknown, then rollback", orphaned_transaction_recovery_duration={"seconds": 1})
        received = server_received(server, 2, half_seen)
        for body in ("of another topic", "unspecified"):
            server.end(PAID, body, pb.ROLLBACK)
    found["received"] = sorted((described(each) for each in received), key=lambda each: bytes(each["body"]))
    of_interest = (b"unknown, then commit", b"unknown, then rollback")
    found["asked"] = sorted(
        {str(each): each for each in asked if each["body"] in of_interest}.values(),
        key=lambda each: bytes(each["body"]),
    )
    found["ends of checks"] = sorted(set(ends))
    return found


def server_received(server: Server, count: int, first: threading.Event) -> list[pb.Message]:
    assert first.wait(LIMIT_S), "nobody was asked"
    other = Server(server.address)
    other.client = Client(server.address, "another-tester")
    group = f"{PAID}-readers"
    found: list[pb.Message] = []
    deadline = time.monotonic() + LIMIT_S
    settings = consumer_settings(group, PAID, pb.SIMPLE_CONSUMER)
    with TelemetryClient(server.address, "another-tester", settings):
        while time.monotonic() < deadline:
            if len(found) >= count:
                deadline = min(deadline, time.monotonic() + 3)
            more = other.client.receive(PAID, group, invisible_ms=60_000, wait_ms=5000)[1]
            if more:
                other.client.ack(PAID, group, *more)
            found += more
    other.close()
    return found


def wrong_input(server: Server) -> dict[str, str]:
    """What is answered to sends that do not fit, by what is wrong with each."""
    far = now_ms() + 86_400_000 + 3_600_000
    soon = now_ms() + 2000
    group, recovery = {"message_group": "g"}, "orphaned_transaction_recovery_duration"
    paid = {"message_type": pb.TRANSACTION}
    cases = {
        "DELAY without a time": [message(DELAYED, b"x", message_type=pb.DELAY)],
        "DELAY without a time, any type": [message(ANY, b"x", message_type=pb.DELAY)],
        "too long a delay": [delayed(b"x", far)],
        "a time before 1970": [
            message(DELAYED, b"x", message_type=pb.DELAY, delivery_timestamp={"seconds": -5})
        ],
        "a time of too many seconds": [
            message(DELAYED, b"x", message_type=pb.DELAY, delivery_timestamp={"seconds": 1 << 60})
        ],
        "DELAY with a message group": [delayed(b"x", soon, ANY, **group)],
        "NORMAL with a time": [delayed(b"x", soon, ANY, message_type=pb.NORMAL)],
        "FIFO with a time": [delayed(b"x", soon, ANY, message_type=pb.FIFO, **group)],
        "no type with a time": [delayed(b"x", soon, ANY, message_type=pb.MESSAGE_TYPE_UNSPECIFIED)],
        "TRANSACTION with a group": [message(ANY, b"x", **paid, **group)],
        "TRANSACTION with a time": [delayed(b"x", soon, ANY, **paid)],
        "recovery too long": [message(PAID, b"x", **paid, **{recovery: {"seconds": 3601}})],
        "recovery negative": [message(PAID, b"x", **paid, **{recovery: {"seconds": -1}})],
        "recovery of a NORMAL message": [message(PLAIN, b"x", **{recovery: {"seconds": 3601}})],
        "DELAY to a NORMAL topic": [delayed(b"x", soon, PLAIN)],
        "TRANSACTION to a DELAY topic": [message(DELAYED, b"x", **paid)],
        "NORMAL to a DELAY topic": [message(DELAYED, b"x")],
        "NORMAL to a TRANSACTION topic": [message(PAID, b"x")],
        "DELAY to a TRANSACTION topic": [delayed(b"x", soon, PAID)],
        "DELAY to a missing topic": [delayed(b"x", soon, "missing")],
        "DELAY and NORMAL in a call": [delayed(b"x", soon, ANY), message(ANY, b"x")],
        "TRANSACTION and NORMAL in a call": [message(ANY, b"x", **paid), message(ANY, b"x")],
        "two halves in a call": [message(ANY, b"x", **paid), message(ANY, b"y", **paid)],
        "two DELAY messages in a call": [delayed(b"x", soon), delayed(b"x", soon)],
        "a half and a time too far away": [delayed(b"x", far, PAID, **paid)],
    }
    return {name: name_of(server.send(*sent).status) for name, sent in cases.items()}
