"""Traffic of every message type against a gateway that dies again and again, and the ledger of what was answered.

A new message type is a line of `KINDS`. The ledger says of each message which ends it may have (`Message.may_end`): a call that
was answered leaves one, a call whose answer never came leaves several.
"""

from __future__ import annotations

import contextlib
import enum
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

import grpc

from broker_gateway.api.grpc.codec import timestamp
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.lakebroker.admin.v1 import admin_pb2
from lakebroker_testing.client import SERVICE, Client
from lakebroker_testing.messages import message as made
from lakebroker_testing.messages import send_request
from tests.suite.evidence import rounds
from tests.support.brokers.telemetry_client import producer_settings
from tests.support.waiting import LIMIT_S

MAX_ATTEMPTS = 4
OPTIONS = {
    "minInvisibleTimeMillsForRecv": "200",
    "grpcClientConsumerMinLongPollingTimeoutMillis": "200",
    "recallMessageEnable": "true",
    "transactionTimeOut": "1500",
    "transactionCheckInterval": "800",
    "transactionCheckMax": "4",
    "mappedFileSizeCommitLog": str(1 << 20),
    "lakeJournalSnapshotBytes": "131072",
    "flushDiskType": "ASYNC_FLUSH",
}
LATEST_MS = rounds(3000, 8000)
"""Of a delay."""
_INVISIBLE_MS = 1000
_RATE = 12.0
"""Calls a second of a producer, about."""
_PRODUCERS = 2


class End(enum.Enum):
    """Where a message is when all is done."""

    DELIVERED = enum.auto()
    """Once in its topic."""
    GONE = enum.auto()
    """In no queue: recalled, rolled back, or never stored."""
    GIVEN_UP = enum.auto()
    """Once in TRANS_CHECK_MAX_TIME_TOPIC."""


class Plan(NamedTuple):
    """How a producer ends a transaction: at once, or when it is asked for the so-manieth time; None: never."""

    resolution: pb.TransactionResolution | None
    asked: int = 0


PLANS = (
    *[Plan(pb.COMMIT)] * 4,
    *[Plan(pb.ROLLBACK)] * 2,
    Plan(pb.COMMIT, 1),
    Plan(pb.COMMIT, 2),
    Plan(pb.ROLLBACK, 1),
    Plan(None),
)
Draw = Callable[[random.Random], dict[str, Any]]


class Kind(NamedTuple):
    """A message type: `system` draws the system properties of a message."""

    name: str
    type: pb.MessageType
    system: Draw = lambda rng: {}
    fifo: bool = False
    most_a_call: int = 1
    queues: int = 2

    @property
    def topic(self) -> str:
        return f"soak-{self.name}"

    @property
    def groups(self) -> tuple[str, str]:
        """One that acknowledges all it gets, and one that is rough with it."""
        return f"steady-{self.name}", f"rough-{self.name}"


def _later(rng: random.Random) -> dict[str, Any]:
    return {"delivery_timestamp": timestamp(int(time.time() * 1000) + rng.randrange(200, LATEST_MS))}


KINDS = (
    Kind("normal", pb.NORMAL, most_a_call=4),
    Kind("fifo", pb.FIFO, lambda rng: {"message_group": f"of {rng.randrange(6)}"}, fifo=True),
    Kind("delay", pb.DELAY, _later),
    Kind("transaction", pb.TRANSACTION),
)


@dataclass(slots=True, eq=False)
class Message:
    """A message that was sent, `number` in the order of its producer; `events` are its life as clients saw it."""

    id: str
    kind: Kind
    number: int
    body: bytes
    tag: str
    message_group: str
    due_ms: int
    plan: Plan
    may_end: frozenset[End] = frozenset()
    answered: bool = False
    asked: int = 0
    events: list[tuple[float, str]] = field(default_factory=list)

    def note(self, what: str) -> None:
        self.events.append((time.time(), what))


class Ledger:
    """What clients know. `deliveries` and `acked` are by consumer group and message id."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.deliveries: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        """Attempt and time."""
        self.acked: dict[tuple[str, str], int] = {}
        """The attempt whose acknowledgement was answered OK."""
        self.forwarded: set[tuple[str, str]] = set()
        """Given up as dead letters, which was answered OK."""
        self.counts: Counter[str] = Counter()
        self.problems: list[tuple[str, str]] = []
        """Message id and what was wrong at once."""
        self._lock = threading.Lock()

    def sending(self, message: Message) -> None:
        ends = {End.DELIVERED, End.GONE}
        if message.kind.type == pb.TRANSACTION:
            ends.add(End.GIVEN_UP)
        message.may_end = frozenset(ends)
        message.note("sent")
        with self._lock:
            self.messages[message.id] = message
            self.counts["sent"] += 1

    def kept(self, message: Message) -> None:
        """The send was answered OK."""
        message.answered = True
        if message.kind.type != pb.TRANSACTION:
            message.may_end = frozenset((End.DELIVERED,))
        elif message.plan.resolution is None:
            message.may_end = frozenset((End.GIVEN_UP,))
        else:
            end = End.DELIVERED if message.plan.resolution == pb.COMMIT else End.GONE
            message.may_end = message.may_end & {
                end,
                End.GIVEN_UP,
            }  # checks run out while the gateway is down
        message.note("the send was answered OK")
        self.count("answered")

    def ended(self, message: Message, end: End, what: str) -> None:
        """It was answered that this is its end."""
        message.note(what)
        if end not in message.may_end:
            self.problem(message.id, f"{what}, though it could end as {message.may_end}")
        message.may_end = frozenset((end,))
        self.count(what)

    def delivered(self, group: str, got: pb.Message) -> None:
        system = got.system_properties
        message = self.messages.get(system.message_id)
        if message is None:
            self.problem(system.message_id, f"{group} received what nobody sent")
            return
        now = time.time()
        with self._lock:
            self.counts["deliveries"] += 1
            self.deliveries[group, message.id].append((system.delivery_attempt, now))
        message.note(f"delivered to {group}, attempt {system.delivery_attempt}")
        if got.body != message.body or system.tag != message.tag:
            self.problem(message.id, "body or tag differ from what was sent")
        if now * 1000 < message.due_ms:
            self.problem(message.id, f"delivered {message.due_ms - now * 1000:.0f} ms before its time")

    def acknowledged(self, group: str, got: pb.Message) -> None:
        system = got.system_properties
        self.messages[system.message_id].note(f"{group}: the acknowledgement was answered OK")
        with self._lock:
            self.counts["acknowledged"] += 1
            self.acked[group, system.message_id] = system.delivery_attempt

    def count(self, what: str, many: int = 1) -> None:
        with self._lock:
            self.counts[what] += many

    def problem(self, message_id: str, what: str) -> None:
        with self._lock:
            self.problems.append((message_id, what))


class Traffic:
    """Producers and consumers in threads. `up` is set while the gateway serves."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.ledger = Ledger()
        self.up = threading.Event()
        self.defects: list[BaseException] = []
        """What ended a thread that should have gone on."""
        self._seed = seed
        self._sending, self._running = True, True
        self._producers: list[threading.Thread] = []
        self._others: list[threading.Thread] = []
        self._telemetry: grpc.Channel | None = None

    def prepare(self) -> None:
        """Makes topics and groups; each group takes its place at the beginning."""
        client = Client(self.address, "administrator")
        for kind in KINDS:
            topic = admin_pb2.Topic(
                name=kind.topic, queues=kind.queues, accept_message_types=[pb.MessageType.Name(kind.type)]
            )
            _administrate(client, "PutTopic", admin_pb2.PutTopicRequest(topic=topic))
            for name in kind.groups:
                group = admin_pb2.Group(name=name, fifo=kind.fifo, retry_max_times=MAX_ATTEMPTS - 1)
                _administrate(client, "PutGroup", admin_pb2.PutGroupRequest(group=group))
                client.receive(kind.topic, name, invisible_ms=_INVISIBLE_MS)
        client.close()
        self.up.set()

    def begin(self) -> None:
        for number, kind in enumerate(KINDS * _PRODUCERS):
            self._producers.append(self._thread(self._produce, kind, number))
        for kind in KINDS:
            for number, group in enumerate((*kind.groups, kind.groups[1])):
                self._others.append(self._thread(self._consume, kind, group, number))
        self._others.append(self._thread(self._answer_checks))

    def stop_sending(self) -> None:
        self._sending = False
        _join(self._producers)

    def stop(self) -> None:
        """To be called while the gateway serves."""
        self._sending = self._running = False
        if self._telemetry is not None:
            self._telemetry.close()
        _join([*self._producers, *self._others])

    def _thread(self, run: Callable[..., None], *arguments: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                run(*arguments)
            except BaseException as error:
                self.defects.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    @contextlib.contextmanager
    def _client(self, name: str) -> Iterator[Client | None]:
        """A connection until the gateway dies, which ends the block; None while it is down."""
        if not self.up.wait(0.5):
            yield None
            return
        client = Client(self.address, name)
        try:
            yield client
        except grpc.RpcError as error:
            self.ledger.count("calls without an answer")
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
            time.sleep(0.05)
        finally:
            client.close()

    # ----- producers -----

    def _produce(self, kind: Kind, producer: int) -> None:
        rng = random.Random(f"{self._seed} {kind.name} {producer}")
        number = 0
        unfinished: list[Message] = []
        """Transactions whose end was not answered."""
        while self._sending:
            with self._client(f"producer-{producer}") as client:
                while client is not None and self._sending:
                    while unfinished:
                        self._end(client, unfinished[-1], pb.SOURCE_CLIENT)
                        unfinished.pop()
                    sent = [
                        self._drawn(kind, producer, number + each, rng)
                        for each in range(rng.randint(1, kind.most_a_call))
                    ]
                    number += len(sent)
                    self._send(client, sent)
                    message = sent[0][0]
                    if message.answered and kind.type == pb.TRANSACTION and _ends_at_once(message.plan):
                        unfinished.append(message)
                    time.sleep(rng.uniform(0.5, 1.5) / _RATE)

    def _drawn(
        self, kind: Kind, producer: int, number: int, rng: random.Random
    ) -> tuple[Message, pb.Message]:
        system = kind.system(rng)
        if "message_group" in system:
            system["message_group"] = f"{producer} {system['message_group']}"
        due = system.get("delivery_timestamp")
        message = Message(
            id=f"{rng.getrandbits(128):032X}",
            kind=kind,
            number=number,
            body=f"{kind.name}/{producer}/{number} ".encode() * rng.randint(1, 30),
            tag=rng.choice(("", "red", "blue")),
            message_group=system.get("message_group", ""),
            due_ms=0 if due is None else due.ToMilliseconds(),
            plan=rng.choice(PLANS),
        )
        wire = made(
            kind.topic,
            message.body,
            {"number": str(number)},
            message_id=message.id,
            message_type=kind.type,
            tag=message.tag or None,
            **system,
        )
        return message, wire

    def _send(self, client: Client, drawn: list[tuple[Message, pb.Message]]) -> None:
        for message, _ in drawn:
            self.ledger.sending(message)
        answer = client.call("SendMessage", send_request(*[wire for _, wire in drawn]))
        for (message, _), entry in zip(drawn, answer.entries, strict=True):
            if entry.status.code != pb.OK:
                self.ledger.problem(message.id, f"the send was refused: {entry.status.message}")
                continue
            self.ledger.kept(message)
            if entry.recall_handle and message.number % 6 == 0:
                self._recall(client, message, entry.recall_handle)

    def _recall(self, client: Client, message: Message, handle: str) -> None:
        message.may_end |= {End.GONE}
        message.note("is being recalled")
        request = rpc.RecallMessageRequest(topic=pb.Resource(name=message.kind.topic), recall_handle=handle)
        answer = client.call("RecallMessage", request)
        if answer.status.code == pb.OK:
            self.ledger.ended(message, End.GONE, "recalled")
        elif answer.status.code == pb.BAD_REQUEST:
            self.ledger.ended(message, End.DELIVERED, "too late to be recalled")
        else:
            self.ledger.problem(message.id, f"the recall was refused: {answer.status.message}")

    def _end(self, client: Client, message: Message, source: pb.TransactionSource) -> None:
        resolution = message.plan.resolution
        assert resolution is not None
        name = "committed" if resolution == pb.COMMIT else "rolled back"
        asked = " when asked" if source == pb.SOURCE_SERVER_CHECK else ""
        message.note(f"is being {name}{asked}")
        answer = client.call("EndTransaction", _end_request(message, resolution, source))
        if answer.status.code == pb.OK:
            end = End.DELIVERED if resolution == pb.COMMIT else End.GONE
            self.ledger.ended(message, end, f"{name}{asked}")
        elif answer.status.code == pb.INVALID_TRANSACTION_ID:
            message.note("its end was refused: it is not pending")  # it ended as asked, or was given up
        else:
            self.ledger.problem(message.id, f"its end was refused: {answer.status.message}")

    def _answer_checks(self) -> None:
        """The producer of all topics that the gateway asks about transactions."""
        while self._running:
            with self._client("checked") as client:
                if client is None:
                    continue
                self._telemetry = channel = grpc.insecure_channel(self.address)
                outgoing: SimpleQueue[rpc.TelemetryCommand | None] = SimpleQueue()
                outgoing.put(
                    rpc.TelemetryCommand(settings=producer_settings(*[kind.topic for kind in KINDS]))
                )
                try:
                    for command in channel.stream_stream(
                        f"/{SERVICE.full_name}/Telemetry",
                        request_serializer=lambda message: message.SerializeToString(),
                        response_deserializer=rpc.TelemetryCommand.FromString,
                    )(iter(outgoing.get, None), metadata=client.metadata):
                        if command.HasField("recover_orphaned_transaction_command"):
                            asked = command.recover_orphaned_transaction_command
                            self._asked(client, asked.transaction_id, asked.message)
                except grpc.RpcError as error:
                    if error.code() != grpc.StatusCode.CANCELLED:  # by `stop`
                        raise
                finally:
                    outgoing.put(None)
                    channel.close()

    def _asked(self, client: Client, transaction_id: str, asked: pb.Message) -> None:
        message = self.ledger.messages.get(transaction_id)
        if message is None or asked.body != message.body:
            self.ledger.problem(transaction_id, "the gateway asks about what was not sent so")
            return
        message.asked += 1
        message.note(f"asked about, time {message.asked}")
        self.ledger.count("checks of transactions")
        if message.plan.resolution is not None and message.asked >= message.plan.asked:
            self._end(client, message, pb.SOURCE_SERVER_CHECK)
        elif message.number % 2:
            request = _end_request(message, pb.TRANSACTION_RESOLUTION_UNSPECIFIED, pb.SOURCE_SERVER_CHECK)
            client.call("EndTransaction", request)
            message.note("answered that its end is not known")

    # ----- consumers -----

    def _consume(self, kind: Kind, group: str, number: int) -> None:
        """Consumers, one after another, each with an id of its own for a few seconds."""
        rng = random.Random(f"{self._seed} {group} {number}")
        life = 0
        while self._running:
            life += 1
            with self._client(f"{group}-{number}-{life}") as client:
                until = time.monotonic() + rng.uniform(2, 8)
                while client is not None and self._running and time.monotonic() < until:
                    batch = rng.choice((1, 4) if kind.fifo else (1, 8, 32))
                    got = client.receive(
                        kind.topic, group, batch=batch, invisible_ms=_INVISIBLE_MS, wait_ms=500
                    )[1]
                    for each in got:
                        self.ledger.delivered(group, each)
                    known = [
                        each for each in got if each.system_properties.message_id in self.ledger.messages
                    ]
                    if kind.fifo:
                        self._settle_in_order(client, kind, group, known)
                    else:
                        self._settle(client, kind, group, known)

    def _settle(self, client: Client, kind: Kind, group: str, messages: list[pb.Message]) -> None:
        fine = [each for each in messages if self._fate(group, each) == "acknowledge"]
        if fine:
            self._acknowledge(client, kind, group, fine)
        for each in messages:
            self._be_rough(client, kind, group, each)

    def _settle_in_order(self, client: Client, kind: Kind, group: str, messages: list[pb.Message]) -> None:
        """One after another; what is behind one that was not acknowledged is left alone."""
        stuck = set[str]()
        for each in messages:
            message_group = each.system_properties.message_group
            if message_group in stuck:
                continue
            if self._fate(group, each) == "acknowledge":
                done = self._acknowledge(client, kind, group, [each])
            else:
                done = False
                self._be_rough(client, kind, group, each)
            if not done:
                stuck.add(message_group)

    def _acknowledge(self, client: Client, kind: Kind, group: str, messages: list[pb.Message]) -> bool:
        """Whether all of them were."""
        for each in messages:
            self.ledger.messages[each.system_properties.message_id].note(f"{group} acknowledges it")
        answer = client.ack(kind.topic, group, *messages)
        done = True
        for each, entry in zip(messages, answer.entries, strict=True):
            if entry.status.code == pb.OK:
                self.ledger.acknowledged(group, each)
                continue
            done = False
            message_id = each.system_properties.message_id
            if entry.status.code == pb.INVALID_RECEIPT_HANDLE:  # its time was over
                self.ledger.messages[message_id].note(f"{group}: the acknowledgement came too late")
                self.ledger.count("acknowledgements that came too late")
            else:
                self.ledger.problem(message_id, f"the acknowledgement was refused: {entry.status.message}")
        return done

    def _fate(self, group: str, got: pb.Message) -> str:
        """What becomes of a delivery, the same whenever it is asked."""
        if group.startswith("steady"):
            return "acknowledge"
        system = got.system_properties
        draw = random.Random(f"{self._seed} {group} {system.message_id}").random()
        if draw < 0.01:
            return "leave"  # until it is a dead letter
        if draw < 0.02:
            return "forward" if system.delivery_attempt > 1 else "nack"
        if draw < 0.05 and system.delivery_attempt == 1:
            return "leave"
        return "nack" if draw < 0.1 and system.delivery_attempt == 1 else "acknowledge"

    def _be_rough(self, client: Client, kind: Kind, group: str, got: pb.Message) -> None:
        fate = self._fate(group, got)
        message = self.ledger.messages[got.system_properties.message_id]
        if fate == "nack":
            answer = client.change_invisible(kind.topic, group, got, 300)
            self.ledger.count("given back", answer.status.code == pb.OK)
        elif fate == "forward":
            answer = client.dead_letter(kind.topic, group, got, MAX_ATTEMPTS)
            if answer.status.code == pb.OK:
                self.ledger.forwarded.add((group, message.id))
                self.ledger.count("forwarded as dead letters")
        else:
            return
        message.note(f"{group}: {fate} answered {pb.Code.Name(answer.status.code)}")


def _ends_at_once(plan: Plan) -> bool:
    return plan.resolution is not None and not plan.asked


def _end_request(
    message: Message, resolution: pb.TransactionResolution, source: pb.TransactionSource
) -> rpc.EndTransactionRequest:
    return rpc.EndTransactionRequest(
        topic=pb.Resource(name=message.kind.topic),
        message_id=message.id,
        transaction_id=message.id,
        resolution=resolution,
        source=source,
    )


def _administrate(client: Client, method: str, request: Any) -> None:
    client.channel.unary_unary(
        f"/lakebroker.admin.v1.AdminService/{method}",
        request_serializer=lambda asked: asked.SerializeToString(),
        response_deserializer=getattr(admin_pb2, f"{method}Response").FromString,
    )(request, timeout=LIMIT_S, metadata=client.metadata)


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "a client hangs"
