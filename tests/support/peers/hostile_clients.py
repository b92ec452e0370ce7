"""Hostile peers of every port of a gateway, as one program: `python -m tests.support.peers.hostile_clients PLAN`.

The plan is a JSON file: `ports` by name, `seconds`, `kinds`, `answers` (a file). Each kind runs in threads of its own, begins again
when its connection is closed, and comes from HOSTILE_ADDRESS. What happened to the messages that were sent is
written to `answers`, `id outcome` a line: `taken`, `refused`, or `unknown` when no answer came.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import random
import socket
import struct
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.frame import encode
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from tests.support.peers.hostile_remoting import hostile_frames
from tests.support.peers.raw_http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    RawPeer,
    frame,
    setting,
)

HOSTILE_ADDRESS = "127.0.0.66"
SERVICE = "/apache.rocketmq.v2.MessagingService/"
IDLE = 1100
_END_S = 2.0
"""Seconds that each kind of client has to finish."""
_PATIENCE_S = 30.0
"""That a gateway may take to answer, or to make room for what is sent."""
EXTREMES = (2**62, 2**63 - 1, -(2**63), 253402300800, 253402300799)
_GZIP = ("grpc-encoding", "gzip")


_ENTRIES = {"AckMessage": b"\x1a\x00", "SendMessage": b"\x0a\x00", "Telemetry": b"\x22\x00"}


class Ended(Exception):
    """The connection was closed, or the time is over."""


class Hostile:
    """What the kinds share."""

    def __init__(self, ports: dict[str, int], seconds: float, answers: TextIO) -> None:
        self.ports = ports
        self.until = time.monotonic() + seconds
        self.rounds = Counter[str]()
        """Begun, of each kind."""
        self.answered = threading.Event()
        """Set once the first extreme sends were answered."""
        self._answers = answers
        self._lock = threading.Lock()

    def peer(self, settings: bytes = b"") -> RawPeer:
        found = RawPeer(f"127.0.0.1:{self.ports['grpc']}", settings, source=HOSTILE_ADDRESS)
        found.socket.settimeout(_PATIENCE_S)
        return found

    def socket(self, port: str) -> socket.socket:
        found = socket.create_connection(("127.0.0.1", self.ports[port]), 10, (HOSTILE_ADDRESS, 0))
        found.settimeout(10)
        return found

    def over(self) -> bool:
        return time.monotonic() > self.until

    def end(self, status: int) -> None:
        """Whatever is under way ends with the process."""
        with self._lock:
            self._answers.flush()
            sys.stderr.flush()
            os._exit(status)

    def note(self, message_id: str, outcome: str) -> None:
        with self._lock:
            self._answers.write(f"{message_id} {outcome}\n")

    def repeat(self, name: str, kind: Callable[[Hostile], None]) -> None:
        """Until the time is over and the first sends were answered; an error in this program ends it, a refusal by the gateway does
        not."""
        while True:
            self.rounds[name] += 1
            try:
                kind(self)
            except (OSError, AssertionError, Ended):
                pass  # closed, reset or silent: the gateway may treat hostile peers so
            except BaseException:
                traceback.print_exc()
                self.end(1)
            if self.over() and self.answered.is_set():
                return
            time.sleep(0.05)


def client_id() -> tuple[str, str]:
    return ("x-mq-client-id", f"hostile-{uuid.uuid4().hex}")


def message(body: bytes, message_id: str, topic: str = "hostile") -> rpc.SendMessageRequest:
    system = pb.SystemProperties(message_id=message_id, message_type=pb.NORMAL)
    return rpc.SendMessageRequest(
        messages=[pb.Message(topic=pb.Resource(name=topic), body=body, system_properties=system)]
    )


def framed(data: bytes, *, compressed: bool = False) -> bytes:
    payload = gzip.compress(data, 9) if compressed else data
    return bytes((compressed,)) + struct.pack(">I", len(payload)) + payload


def data_frames(stream: int, body: bytes, *, last: bool) -> bytes:
    starts = range(0, len(body), 16_384)
    return b"".join(
        frame(DATA, END_STREAM if last and at + 16_384 >= len(body) else 0, stream, body[at : at + 16_384])
        for at in starts
    )


def extreme_sends(hostile: Hostile) -> None:
    """Times that are none, beside one that is."""
    with hostile.peer() as peer:
        stream = 1
        while True:
            sent = {}
            for seconds in (*EXTREMES, 1):
                message_id = f"HOSTILE{uuid.uuid4().hex}"
                request = message(b"x", message_id)
                request.messages[0].system_properties.born_timestamp.seconds = seconds
                hostile.note(message_id, "unknown")
                peer.send(
                    peer.request(stream, SERVICE + "SendMessage", request.SerializeToString(), client_id())
                )
                sent[stream] = message_id
                stream += 2
            for each in sent:
                fields, body = peer.answer(each)
                if fields.get("grpc-status") != "0":
                    hostile.note(sent[each], "refused")
                else:
                    answer = rpc.SendMessageResponse.FromString(body[5:])
                    hostile.note(sent[each], "taken" if answer.status.code == pb.OK else "refused")
            hostile.answered.set()
            if hostile.over():
                return


@functools.cache
def _bombs_of(method: str) -> tuple[bytes, bytes]:
    entry = _ENTRIES[method]
    return framed(entry * (30 << 20), compressed=True), framed(entry * 200_000)


def bombs(hostile: Hostile) -> None:
    """Requests that become large when they are decompressed or parsed, to clients that take no reply."""
    with hostile.peer(setting(4, 0)) as peer:
        stream = 1
        for method in _ENTRIES:
            packed, plain = _bombs_of(method)
            for body, extra in ((packed, (_GZIP,)), (plain, ())):
                peer.send(peer.request(stream, SERVICE + method, None, client_id(), *extra))
                peer.send(data_frames(stream, body, last=method != "Telemetry"))
                peer.until(lambda each: each.kind == HEADERS)
                stream += 2


def drops_of_a_byte(hostile: Hostile) -> None:
    """A large part of a request in frames as they should be, the rest a byte a frame."""
    with hostile.peer() as peer:
        peer.send(peer.request(1, SERVICE + "SendMessage", None, client_id()))
        peer.send(
            frame(DATA, 0, 1, b"\0" + struct.pack(">I", 12 << 20))
            + data_frames(1, bytes(900 << 10), last=False)
        )
        for _ in range(50):
            peer.send(frame(DATA, 0, 1, b"x") * 1000)
            if hostile.over():
                return


def half_requests(hostile: Hostile) -> None:
    """Most of a request of 30 MiB on each connection, for as long as it may stay."""
    peers = [hostile.peer() for _ in range(6)]
    try:
        for peer in peers:
            peer.send(peer.request(1, SERVICE + "SendMessage", None, client_id()))
            peer.send(frame(DATA, 0, 1, b"\0" + struct.pack(">I", 30 << 20)))
            within_windows(peer, 28 << 20)
    finally:
        for peer in peers:
            peer.socket.close()


def within_windows(peer: RawPeer, size: int) -> None:
    room = {0: 8 << 20, 1: (1 << 20) - 16_384}
    while size > 0:
        while min(room.values()) < 16_384:
            found = peer.until(lambda each: each.kind in (WINDOW_UPDATE, HEADERS, RST_STREAM, GOAWAY))
            if found.kind != WINDOW_UPDATE:
                raise Ended
            room[found.stream] += int.from_bytes(found.payload, "big")
        peer.send(frame(DATA, 0, 1, bytes(16_384)))
        size -= 16_384
        room = {each: left - 16_384 for each, left in room.items()}


FLOODS = {
    "updates": frame(WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"),
    "settings": frame(SETTINGS, 0, 0, setting(4, 65_535)),
    "pings": frame(PING, 0, 0, b"12345678"),
    "acknowledged pings": frame(PING, ACK, 0, b"12345678"),
    "priorities": frame(PRIORITY, 0, 1, b"\0\0\0\0\x10"),
    "unknown": frame(0x42, 0, 0),
}


def floods(hostile: Hostile) -> None:
    """Frames that carry nothing, on a connection for each kind."""
    for flood in FLOODS.values():
        with contextlib.suppress(OSError, AssertionError), hostile.peer() as peer:
            for _ in range(100):
                peer.send(flood * 1000)
                if hostile.over():
                    return


def resets(hostile: Hostile) -> None:
    """Receives that are opened and reset at once."""
    with hostile.peer() as peer:
        stream = 1
        for _ in range(50):
            burst = b""
            for _ in range(50):
                burst += peer.request(stream, SERVICE + "ReceiveMessage", receive(), client_id())
                burst += frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
                stream += 2
            peer.send(burst)
            if hostile.over():
                return


def receive(group: str = "hostile", topic: str = "nothing") -> bytes:
    request = rpc.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic), id=-1),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.FromSeconds(60)
    request.long_polling_timeout.FromSeconds(20)
    return request.SerializeToString()


def waiting_receives(hostile: Hostile) -> None:
    """As many receives as a connection may have, none of which gets anything."""
    with hostile.peer() as peer:
        for n in range(15_000):
            peer.send(
                peer.request(1 + 2 * n, SERVICE + "ReceiveMessage", receive(f"g{n % 500}"), client_id())
            )
            if hostile.over():
                return
        _until_closed(hostile, peer)


def invented_clients(hostile: Hostile) -> None:
    """Settings and signs of life of clients that there are not."""
    settings = pb.Settings(
        client_type=pb.PUSH_CONSUMER,
        subscription=pb.Subscription(
            group=pb.Resource(name="hostile"),
            subscriptions=[pb.SubscriptionEntry(topic=pb.Resource(name=f"t{n}")) for n in range(100)],
        ),
    )
    command = framed(rpc.TelemetryCommand(settings=settings).SerializeToString())
    beat = rpc.HeartbeatRequest(client_type=pb.PUSH_CONSUMER, group=pb.Resource(name="hostile"))
    with hostile.peer() as peer:
        for n in range(500):
            invented = client_id()
            peer.send(peer.request(4 * n + 1, SERVICE + "Telemetry", None, invented))
            peer.send(data_frames(4 * n + 1, command, last=False))
            peer.send(peer.request(4 * n + 3, SERVICE + "Heartbeat", beat.SerializeToString(), invented))
            if hostile.over():
                return


def untaken_replies(hostile: Hostile) -> None:
    """Large messages received with all windows closed."""
    with hostile.peer() as peer:
        for n in range(20):
            message_id = f"HOSTILE{uuid.uuid4().hex}"
            hostile.note(message_id, "unknown")
            request = message(os.urandom(1 << 19), message_id, "large").SerializeToString()
            peer.send(peer.request(2 * n + 1, SERVICE + "SendMessage", None, client_id()))
            peer.send(data_frames(2 * n + 1, framed(request), last=True))
            peer.answer(2 * n + 1)
    with hostile.peer(setting(4, 0)) as peer:
        for n in range(200):
            peer.send(
                peer.request(2 * n + 1, SERVICE + "ReceiveMessage", receive(f"r{n}", "large"), client_id())
            )
        _until_closed(hostile, peer, 5)


def idle_connections(hostile: Hostile) -> None:
    """More than there are places, each second one after its preface."""
    peers = []
    try:
        for n in range(IDLE):
            peers.append(hostile.socket("grpc"))
            if n % 2:
                with contextlib.suppress(OSError):
                    peers[-1].sendall(PREFACE + frame(SETTINGS, 0, 0))
            if hostile.over():
                return
        time.sleep(5)
    finally:
        for each in peers:
            each.close()


def garbage(hostile: Hostile) -> None:
    """Bytes that are no protocol of the port, on every port."""
    chance = random.Random()
    frames = [*hostile_frames(), *(PREFACE + chance.randbytes(200) for _ in range(20))]
    for port in hostile.ports:
        for _ in range(40):
            with contextlib.suppress(OSError), hostile.socket(port) as peer:
                peer.sendall(chance.choice(frames))
            if hostile.over():
                return


def strange_registrations(hostile: Hostile) -> None:
    """A broker that there is not, registered again and again under new names, and others unregistered."""
    if "namesrv" not in hostile.ports:
        raise Ended
    body = RegisterBrokerBody(DataVersion(0, 1, 1), {"honest": TopicConfig("honest")}).encode(compress=False)
    with hostile.socket("namesrv") as peer:
        for n in range(200):
            ids = {
                "brokerName": f"hostile{n}",
                "brokerAddr": f"127.0.0.66:{10_000 + n}",
                "clusterName": "DefaultCluster",
                "brokerId": "0",
                "haServerAddr": "",
            }
            peer.sendall(encode(Command(RequestCode.REGISTER_BROKER, ids, body)))
            gone = {**ids, "brokerName": "broker-a", "brokerAddr": f"127.0.0.1:{hostile.ports['remoting']}"}
            peer.sendall(encode(Command(RequestCode.UNREGISTER_BROKER, gone)))
            peer.recv(1 << 16)


def _until_closed(hostile: Hostile, peer: RawPeer, seconds: float = 1e9) -> None:
    until = min(hostile.until, time.monotonic() + seconds)
    peer.socket.settimeout(1.0)
    while time.monotonic() < until:
        with contextlib.suppress(TimeoutError):
            found: Frame | None = peer.read()
            if found is None or found.kind == GOAWAY:
                return


KINDS: dict[str, tuple[Callable[[Hostile], None], int]] = {
    "extreme sends": (extreme_sends, 1),
    "bombs": (bombs, 1),
    "drops of a byte": (drops_of_a_byte, 1),
    "half requests": (half_requests, 1),
    "floods": (floods, 2),
    "resets": (resets, 1),
    "waiting receives": (waiting_receives, 1),
    "invented clients": (invented_clients, 1),
    "untaken replies": (untaken_replies, 1),
    "idle connections": (idle_connections, 1),
    "garbage": (garbage, 1),
    "strange registrations": (strange_registrations, 1),
}
"""With the number of threads of each."""


def main(plan_file: str) -> None:
    plan = json.loads(Path(plan_file).read_text())
    with Path(plan["answers"]).open("w") as answers:
        hostile = Hostile(plan["ports"], plan["seconds"], answers)
        threads = [
            threading.Thread(target=hostile.repeat, args=(name, kind), daemon=True)
            for name, (kind, count) in KINDS.items()
            if name in plan["kinds"]
            for _ in range(count)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join(max(0.0, hostile.until + _END_S - time.monotonic()))
        hostile.answered.wait(_PATIENCE_S)
        Path(plan["rounds"]).write_text(json.dumps(hostile.rounds))
        hostile.end(0)


if __name__ == "__main__":
    main(sys.argv[1])
