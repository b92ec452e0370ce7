"""A client's telemetry stream over plain gRPC, which answers commands as a test tells it to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from typing import Any, Self

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from tests.support.waiting import LIMIT_S


def consumer_settings(
    group: str, topic: str, kind: pb.ClientType = pb.PUSH_CONSUMER, expression: str = "*"
) -> pb.Settings:
    settings = pb.Settings(client_type=kind, subscription=pb.Subscription(group=pb.Resource(name=group)))
    settings.user_agent.version, settings.user_agent.hostname = "5.0.7", "host-1"
    entry = settings.subscription.subscriptions.add(topic=pb.Resource(name=topic))
    entry.expression.expression, entry.expression.type = expression, pb.TAG
    return settings


def producer_settings(*topics: str) -> pb.Settings:
    settings = pb.Settings(client_type=pb.PRODUCER)
    settings.publishing.topics.extend(pb.Resource(name=each) for each in topics)
    return settings


def answered(
    command: rpc.TelemetryCommand, code: int = pb.OK, text: str = "main", reason: str = ""
) -> rpc.TelemetryCommand:
    """What an official client answers to a command: `text` is its stack, `reason` stands beside the code."""
    status = pb.Status(code=code, message=reason)
    if command.WhichOneof("command") == "verify_message_command":
        nonce = command.verify_message_command.nonce
        return rpc.TelemetryCommand(status=status, verify_message_result=rpc.VerifyMessageResult(nonce=nonce))
    trace = rpc.ThreadStackTrace(
        nonce=command.print_thread_stack_trace_command.nonce, thread_stack_trace=text or None
    )
    return rpc.TelemetryCommand(status=status, thread_stack_trace=trace)


def not_consumed(command: rpc.TelemetryCommand) -> Iterable[rpc.TelemetryCommand]:
    """What a client answers that has seen the message of a command, and failed."""
    body = command.verify_message_command.message.body.decode()
    return [answered(command, pb.FAILED_TO_CONSUME_MESSAGE, reason=f"saw {body}")]


class TelemetryClient:
    """Connected when it is entered; `answers` gives what is sent for each command that comes, at first nothing.

    `commands` are those that came, without settings. `ended` is set when the stream has ended.
    """

    def __init__(
        self, address: str, client_id: str, settings: pb.Settings, tls: grpc.ChannelCredentials | None = None
    ) -> None:
        self.answers: Callable[[rpc.TelemetryCommand], Iterable[rpc.TelemetryCommand]] = lambda _: ()
        self.commands: Queue[rpc.TelemetryCommand] = Queue()
        self.ended = threading.Event()
        self._channel = grpc.secure_channel(address, tls) if tls else grpc.insecure_channel(address)
        self._outgoing: Queue[rpc.TelemetryCommand | None] = Queue()
        self._settings = rpc.TelemetryCommand(settings=settings)
        self._settled = threading.Event()
        self._outgoing.put(self._settings)
        self._metadata = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "JAVA"),
            ("x-mq-client-version", "5.2.0"),
        )
        self._call = self._channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=rpc.TelemetryCommand.FromString,
        )(iter(self._outgoing.get, None), metadata=self._metadata)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        assert self._settled.wait(LIMIT_S), "no settings came"
        return self

    def __exit__(self, *exc: object) -> None:
        self._outgoing.put(None)
        self._call.cancel()
        self._channel.close()
        self._reader.join(LIMIT_S)

    def stop(self) -> None:
        """Says that the client stops; it is gone then for the broker, while the stream ends with the block."""
        self._channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/NotifyClientTermination",
            request_serializer=rpc.NotifyClientTerminationRequest.SerializeToString,
            response_deserializer=rpc.NotifyClientTerminationResponse.FromString,
        )(rpc.NotifyClientTerminationRequest(), metadata=self._metadata, timeout=LIMIT_S)

    def send(self, command: rpc.TelemetryCommand) -> None:
        self._outgoing.put(command)

    def settle(self) -> None:
        """Returns when the broker has read what was sent: it answers settings in their turn."""
        self._settled.clear()
        self.send(self._settings)
        assert self._settled.wait(LIMIT_S), "no settings came"

    def next_command(self) -> rpc.TelemetryCommand:
        return self.commands.get(timeout=LIMIT_S)

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for command in self._call:
                if command.HasField("settings"):
                    self._settled.set()
                    continue
                self.commands.put(command)
                for answer in self.answers(command):
                    self._outgoing.put(answer)
        self.ended.set()


@contextlib.contextmanager
def in_background(call: Callable[[], Any]) -> Iterator[Queue[Any]]:
    """Where the call's result comes once it returns; waits for it at the end."""
    found: Queue[Any] = Queue()
    thread = threading.Thread(target=lambda: found.put(call()))
    thread.start()
    yield found
    thread.join(LIMIT_S)
    assert not thread.is_alive()
