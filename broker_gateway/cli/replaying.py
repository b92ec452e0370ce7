"""Dead letters sent again, where they came from: by `lakebroker dlq replay`, and by the console."""

from __future__ import annotations

import time
from typing import Any

from broker_gateway.cli import replay_outcomes
from broker_gateway.cli.gateway_calls import GatewayCalls
from broker_gateway.cli.new_messages import end_transaction, send_message
from broker_gateway.cli.output import fail, lines
from broker_gateway.cli.questions.letters import id_before, topic_before

REPLAYED = "REPLAY_OF"
"""A property of what is sent again: the id of the message that became the dead letter."""


class Sender:
    """Sends dead letters where they came from, so many a second at most. Behind one that fails, those of its message group or lite topic are
    held back, since they would come before it."""

    def __init__(self, calls: GatewayCalls, rate: float, dry_run: bool) -> None:
        self._calls = calls
        self._pause_s = 1 / rate
        self._dry_run = dry_run
        self._next_s = 0.0
        self._held_by: dict[tuple[str, str, str], str] = {}
        """Ids of messages that failed, by topic, and what is in order within it: `message group` or `lite topic`, and its name."""

    def send(self, message: Any) -> dict[str, Any]:
        """What became of one."""
        from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

        queue_id, offset, origin_id = key_of(message)
        origin, system = topic_before(message), message.system_properties
        row = {
            "dlq_queue_id": queue_id,
            "dlq_queue_offset": offset,
            "origin_message_id": origin_id,
            "topic": origin,
            "outcome": "would be sent",
            "new_message_id": "",
        }
        if not origin:
            return row | {"outcome": "failed: it does not say where it came from"}
        if self._dry_run:
            return row
        order = next((each for each in ("message_group", "lite_topic") if system.HasField(each)), "")
        kind = order.replace("_", " ")
        place = (origin, kind, getattr(system, order) if order else "")
        held_by = self._held_by.get(place)
        if held_by is not None:
            return row | {"outcome": f"failed: held back by {held_by} of its {kind}"}
        time.sleep(max(self._next_s - time.monotonic(), 0))
        self._next_s = time.monotonic() + self._pause_s
        new = _again(message, origin, origin_id)
        answer = send_message(self._calls, new)
        if answer.status.code != pb.OK:
            if order:
                self._held_by[place] = origin_id
            return row | {"outcome": _refused(answer.status)}
        if not answer.entries:
            fail(
                f"the gateway at {self._calls.address} answered SendMessage without a message; is it a lakebroker?"
            )
        if new.system_properties.message_type == pb.TRANSACTION:
            ended = end_transaction(self._calls, new.topic, answer.entries[0], pb.COMMIT)
            if ended.status.code != pb.OK:
                return row | {"outcome": _refused(ended.status)}
        return row | {"outcome": replay_outcomes.SENT, "new_message_id": new.system_properties.message_id}


def _refused(status: Any) -> str:
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    code = pb.Code.Name(status.code) if status.code in pb.Code.values() else str(status.code)
    return lines(f"failed: {code} {status.message}")


def _again(message: Any, topic: str, origin_id: str) -> Any:
    """A new message with all that the sender gave the dead one, to be delivered at once."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    system = message.system_properties
    new = pb.Message(
        topic=pb.Resource(name=topic),
        user_properties={**message.user_properties, REPLAYED: origin_id},
        body=message.body,
        system_properties=pb.SystemProperties(
            keys=system.keys,
            body_encoding=system.body_encoding,
            message_type=_type(system),
        ),
    )
    for name in ("tag", "message_group", "trace_context", "priority", "lite_topic"):
        if system.HasField(name):
            setattr(new.system_properties, name, getattr(system, name))
    if new.system_properties.message_type == pb.DELAY:
        new.system_properties.delivery_timestamp.GetCurrentTime()
    return new


def _type(system: Any) -> Any:
    """The type that a dead letter's sender gave it, as far as what it has says so: its own type counts the DELAY property of
    every dead letter."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    if system.HasField("message_group"):
        return pb.FIFO
    if system.message_type == pb.TRANSACTION:
        return pb.TRANSACTION
    if system.HasField("lite_topic"):
        return pb.LITE
    if system.HasField("priority"):
        return pb.PRIORITY
    return pb.DELAY if system.HasField("delivery_timestamp") else pb.NORMAL


def key_of(message: Any) -> replay_outcomes.Key:
    system = message.system_properties
    return system.queue_id, system.queue_offset, id_before(message)
