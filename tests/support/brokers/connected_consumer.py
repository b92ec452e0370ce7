"""A push consumer over plain gRPC, which a broker may ask for its stack, or to consume a message."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from tests.support.waiting import LIMIT_S


class Consumer:
    """A connected push consumer: its settings are sent, and commands are answered by `answers`."""

    def __init__(
        self,
        gateway: Gateway,
        group: str,
        topic: str,
        expression: str = "*",
        client_id: str = "consumer-1",
        answers: Callable[[rpc.TelemetryCommand], rpc.TelemetryCommand | None] = lambda command: None,
    ) -> None:
        self.client = Client(gateway.address, client_id)
        self._sent: queue.Queue[rpc.TelemetryCommand | None] = queue.Queue()
        settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
        settings.user_agent.version, settings.user_agent.hostname = "5.0.7", "host-1"
        settings.subscription.group.name = group
        entry = settings.subscription.subscriptions.add(topic=pb.Resource(name=topic))
        entry.expression.type, entry.expression.expression = pb.TAG, expression
        self._sent.put(rpc.TelemetryCommand(settings=settings))
        call = self.client.channel.stream_stream(
            "/apache.rocketmq.v2.MessagingService/Telemetry",
            request_serializer=rpc.TelemetryCommand.SerializeToString,
            response_deserializer=rpc.TelemetryCommand.FromString,
        )
        metadata = (*self.client.metadata, ("x-mq-language", "JAVA"))
        self._stream = call(iter(self._sent.get, None), metadata=metadata)
        assert next(self._stream).status.code == pb.OK
        self._answers = answers
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(grpc.RpcError):
            for command in self._stream:
                answer = self._answers(command)
                if answer is not None:
                    self._sent.put(answer)

    def close(self) -> None:
        """As a client that stops."""
        self.client.call("NotifyClientTermination", rpc.NotifyClientTerminationRequest())
        self._sent.put(None)
        self._stream.cancel()
        self.client.close()
        self._reader.join(LIMIT_S)


def answering(command: rpc.TelemetryCommand) -> rpc.TelemetryCommand | None:
    """What a client answers that does what it is asked."""
    kind = command.WhichOneof("command")
    if kind == "print_thread_stack_trace_command":
        nonce = command.print_thread_stack_trace_command.nonce
        trace = rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace="at Main.main")
        return rpc.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace)
    if kind == "verify_message_command":
        asked = command.verify_message_command
        status = pb.Status(code=pb.FAILED_TO_CONSUME_MESSAGE, message=f"saw {asked.message.body.decode()}")
        return rpc.TelemetryCommand(
            status=status, verify_message_result=rpc.VerifyMessageResult(nonce=asked.nonce)
        )
    return None
