"""A group's dead letters as a broker gives them: chosen, queue by queue, the oldest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from broker_gateway.cli.gateway_calls import GatewayCalls
from broker_gateway.cli.output import fail
from broker_gateway.cli.units import instant

_BATCH = 32


class Choice(NamedTuple):
    """Which dead letters; empty or None: all."""

    expression: str
    topic: str
    ids: frozenset[str]
    since: datetime | None
    until: datetime | None

    def takes(self, message: Any) -> bool:
        """Whether a message of the dead-letter topic is one of them, as far as the broker has not looked at it."""
        dead_at = stored_at(message)
        return (
            (not self.topic or topic_before(message) == self.topic)
            and (not self.ids or not self.ids.isdisjoint(ids_of(message)))
            and (self.since is None or dead_at >= self.since)
            and (self.until is None or dead_at < self.until)
        )


EVERY = Choice("", "", frozenset(), None, None)
"""All that there are."""


def letters(calls: GatewayCalls, group: str, queues: int, choice: Choice) -> Iterator[Any]:
    """The chosen dead letters of one queue after the other, oldest first."""
    for queue_id in range(queues):
        for batch in _batches(calls, group, queue_id, choice):
            yield from batch


def letters_at(calls: GatewayCalls, group: str, places: Iterable[tuple[int, int]]) -> Iterator[Any]:
    """The dead letters at these queues and offsets, in that order, without those that are not there any more."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    for queue_id, of_queue in itertools.groupby(sorted(set(places)), lambda place: place[0]):
        begin = _bound(calls, group, queue_id, pb.BEGINNING)
        end = _bound(calls, group, queue_id, pb.END)
        waiting = [offset for _, offset in of_queue if begin <= offset < end]
        while waiting:
            count = 1
            while count < min(_BATCH, len(waiting)) and waiting[count] == waiting[0] + count:
                count += 1
            found, at = _pulled(calls, group, queue_id, (waiting[0], count), EVERY.expression)
            wanted = set(waiting)
            yield from (each for each in found if each.system_properties.queue_offset in wanted)
            waiting = [offset for offset in waiting if offset >= at]


def _batches(calls: GatewayCalls, group: str, queue_id: int, choice: Choice) -> Iterator[list[Any]]:
    """The chosen dead letters of a queue, up to where it ends now."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    at = _bound(calls, group, queue_id, pb.BEGINNING)
    end = _bound(calls, group, queue_id, pb.END)
    while at < end:
        found, at = _pulled(calls, group, queue_id, (at, _BATCH), choice.expression)
        yield [each for each in found if choice.takes(each)]


def _pulled(
    calls: GatewayCalls, group: str, queue_id: int, at: tuple[int, int], expression: str
) -> tuple[list[Any], int]:
    """Dead letters of a queue from an offset on, so many at most, and where it goes on: further than it began. `expression`: of SQL,
    or empty."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    offset, count = at
    wanted = pb.FilterExpression(type=pb.TAG, expression="*")
    if expression:
        wanted = pb.FilterExpression(type=pb.SQL, expression=expression)
    request = rpc.PullMessageRequest(
        group=pb.Resource(name=group),
        message_queue=_queue(group, queue_id),
        offset=offset,
        batch_size=count,
        filter_expression=wanted,
    )
    request.long_polling_timeout.FromMilliseconds(0)
    answers = calls.messages("PullMessage", request, rpc.PullMessageResponse)
    status = next((each.status for each in answers if each.HasField("status")), None)
    if status is None:
        fail(f"the gateway at {calls.address} answered PullMessage without a status; is it a lakebroker?")
    if status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
        calls.refused("PullMessage", status)
    behind = next((each.next_offset for each in answers if each.HasField("next_offset")), offset)
    if behind <= offset:
        fail(
            f"the gateway at {calls.address} answered PullMessage at {offset} without a way on; is it a lakebroker?"
        )
    return [each.message for each in answers if each.HasField("message")], behind


def queues_of(calls: GatewayCalls, group: str) -> int:
    """How many the group's dead-letter topic has; 0 before its first dead letter. Ends the command for a group that is none."""
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as admin

    groups = calls.admin("ListGroups", admin.ListGroupsRequest(), admin.ListGroupsResponse).groups
    if group not in {each.name for each in groups}:
        fail(f"there is no consumer group {group!r} at {calls.address}; `lakebroker group list` names them")
    topics = calls.admin(
        "ListTopics", admin.ListTopicsRequest(include_system=True), admin.ListTopicsResponse
    ).topics
    return next((each.queues for each in topics if each.name == _topic(group)), 0)


def _bound(calls: GatewayCalls, group: str, queue_id: int, policy: Any) -> int:
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    request = rpc.QueryOffsetRequest(message_queue=_queue(group, queue_id), query_offset_policy=policy)
    answer = calls.messaging("QueryOffset", request, rpc.QueryOffsetResponse)
    calls.check("QueryOffset", answer.status)
    return int(answer.offset)


def _topic(group: str) -> str:
    from broker_gateway.metadata.names import dead_letter_topic

    return dead_letter_topic(group)


def _queue(group: str, queue_id: int) -> Any:
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    return pb.MessageQueue(topic=pb.Resource(name=_topic(group)), id=queue_id)


def stored_at(message: Any) -> datetime:
    """Ends the command for what is no time."""
    stored = message.system_properties.store_timestamp
    return instant(stored.seconds, stored.nanos // 1000)


def topic_before(message: Any) -> str:
    return str(message.system_properties.dead_letter_queue.topic)


def id_before(message: Any) -> str:
    """Of the message that died; its own where it does not say."""
    system = message.system_properties
    return str(system.dead_letter_queue.message_id or system.message_id)


def ids_of(message: Any) -> set[str]:
    """By which it can be chosen."""
    return {str(message.system_properties.message_id), id_before(message)}
