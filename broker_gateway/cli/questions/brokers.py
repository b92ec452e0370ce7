"""Answers of brokers: what their calls tell. They know no history of deliveries, and search for messages in one topic at a
time, since their logs have no index of keys."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, NoReturn

from broker_gateway.cli.gateway_calls import GatewayCalls, Reached
from broker_gateway.cli.output import fail, warn
from broker_gateway.cli.questions.letters import Choice, letters, stored_at, topic_before
from broker_gateway.cli.questions.printing import shown_time
from broker_gateway.cli.questions.rows import Row, message_row, stored_row
from broker_gateway.cli.questions.wanted import Wanted, ordered
from broker_gateway.cli.units import instant
from broker_gateway.metadata.names import DLQ_PREFIX

_PAGE = 100
_QUERY_S = 45.0
_ID = re.compile(r"[0-9A-Fa-f]{32,56}")
"""As clients make message ids; others are looked up as keys, which find ids too."""
_NO_HISTORY = "a broker keeps no history of deliveries, so that only where messages were stored is shown; add --lake LOCATION for the rest"
_LARGEST_BODY = 16 << 20
"""Bytes; a body that would grow further is left as it is."""


class OfBrokers:
    """See `Answers`."""

    def __init__(self, reached: Reached, most_body: int | None = None) -> None:
        """`most_body`: bytes of a body that answers have, None for all."""
        self._reached = reached
        self._most_body = most_body
        self._names: dict[str, str | None] = {}
        """Of brokers, by address."""
        self.cut_off: list[str] = []

    @property
    def named(self) -> str:
        return (
            f"the broker at {self._reached.named}"
            if not self._reached.name_servers
            else f"a broker at {self._reached.named}"
        )

    def messages(self, wanted: Wanted) -> list[Row]:
        self._check_topic(wanted)
        found: list[Row] = []
        for calls in self._reached.all():
            broker = self._name(calls, wanted.topic)
            found += [
                _message(wanted.topic, broker, message, self._most_body)
                for message in _messages(calls, _request(wanted), wanted.key, self.cut_off)
            ]
        return sorted(found, key=lambda row: row["store_timestamp"], reverse=True)[: wanted.most]

    def trace(self, wanted: Wanted) -> list[Row]:
        rows = [stored_row(each) for each in self.messages(wanted)]
        if rows:
            warn([_NO_HISTORY])
        return ordered(rows)

    def lag(self, group: str, topic: str) -> list[Row]:
        rows: list[Row] = []
        known = False
        for calls in self._reached.all():
            for name in (each for each in _groups(calls) if group in ("", each)):
                known = True
                rows += self.lag_at(calls, name, topic)
        if group and not known:
            self._no_group(group)
        return sorted(
            rows, key=lambda row: (row["consumer_group"], row["topic"], row["broker"] or "", row["queue_id"])
        )

    def lag_of(self, groups: Iterable[str], topic: str) -> list[Row]:
        """Of groups by name, of which some may be none."""
        wanted = sorted(groups)
        return [
            row
            for calls in self._reached.all()
            for group in wanted
            for row in self.lag_at(calls, group, topic)
        ]

    def lag_at(self, calls: GatewayCalls, group: str, topic: str) -> list[Row]:
        """A group's lag at one gateway, which answers nothing for a group that is none."""
        from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

        # all topics of the group: one that is named may be one that this broker has not
        request = pb.ListOffsetsRequest(group=group)
        queues = calls.admin("ListOffsets", request, pb.ListOffsetsResponse).queues
        read = _read([each for each in queues if topic in ("", each.topic)])
        return [_lag(group, self._name(calls, each.topic), each) for each in read]

    def dead_letters(self, group: str, choice: Choice, most: int) -> list[Row]:
        rows: list[Row] = []
        known = False
        for calls in self._reached.all():
            known = known or not group or group in _groups(calls)
            some: list[Row] = []
            for name, queues in _dead_groups(calls):
                if group in ("", name) and len(some) < most:
                    broker = self._name(calls, DLQ_PREFIX + name)
                    found = letters(calls, name, queues, choice)
                    some += [
                        _letter(name, broker, each, self._most_body)
                        for each in itertools.islice(found, most - len(some))
                    ]
            rows += some
        if not known and not rows:
            self._no_group(group)
        order = sorted(
            rows,
            key=lambda row: (
                row["consumer_group"],
                row["broker"] or "",
                row["dlq_queue_id"],
                row["dlq_queue_offset"],
            ),
        )
        return order[:most]

    def looked(self, topic: str) -> str:
        said = []
        for calls in self._reached.all():
            first = _first(calls, topic)
            since = f", where there are messages of it from {shown_time(first)} UTC" if first else ""
            said.append(f"in the log of the broker at {calls.address}{since}")
        return f"in topic {topic}: {'; '.join(said)}; nor in the lake that a broker was started with (lakeLocation), if it has one"

    def age(self) -> str:
        return ""

    def nothing_read(self) -> str:
        return ""

    def _name(self, calls: GatewayCalls, topic: str) -> str | None:
        """The broker's name, which it says of each of its topics."""
        from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
        from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

        if calls.address not in self._names:
            request = rpc.DescribeTopicStatusRequest(topic=pb.Resource(name=topic))
            answer = calls.public(
                "DescribeTopicStatus", request, rpc.DescribeTopicStatusResponse, checked=False
            )
            self._names[calls.address] = answer.tags.get("broker")
        return self._names[calls.address]

    def _no_group(self, group: str) -> NoReturn:
        fail(
            f"there is no consumer group {group!r} at {self._reached.named}; `lakebroker group list` names them"
        )

    def _check_topic(self, wanted: Wanted) -> None:
        if not wanted.topic:
            fail(
                "--topic is missing: a broker searches in one topic. Name it, or add --lake LOCATION, which has an index of all topics",
                2,
            )


def _request(wanted: Wanted) -> Any:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    request = rpc.ListMessageRequest(
        topic=pb.Resource(name=wanted.topic),
        page_size=min(wanted.most, _PAGE),
        max_message_nums=wanted.most,
    )
    for field, given in ((request.begin_timestamp, wanted.since), (request.end_timestamp, wanted.until)):
        if given is not None:
            field.FromDatetime(given)
    if wanted.tag:
        request.subscription = wanted.tag
    if wanted.queue is not None:
        request.queue_id = wanted.queue
    return request


def _messages(calls: GatewayCalls, request: Any, key: str, cut_off: list[str]) -> Iterator[Any]:
    """All that are wanted and not more, the newest first, page by page. `cut_off` gets what kept a later page from being had; without a
    message before it, that ends the command."""
    kinds = ["message_id", "message_key"] if _ID.fullmatch(key) else ["message_key"] if key else [""]
    for kind in kinds:
        if kind:
            setattr(request, kind, key)
        some = False
        for message in itertools.islice(_paged(calls, request, cut_off), request.max_message_nums):
            some = True
            yield message
        if some:
            return


def _paged(calls: GatewayCalls, request: Any, cut_off: list[str]) -> Iterator[Any]:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    request.scroll_id = ""
    some = False
    while True:
        answer = calls.public("QueryMessage", request, rpc.ListMessageResponse, _QUERY_S, checked=False)
        if answer.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
            if not some:
                calls.refused("QueryMessage", answer.status)
            cut_off.append(calls.refusal("QueryMessage", answer.status))
            return
        some = some or bool(answer.messages)
        yield from answer.messages
        request.scroll_id = answer.scroll_id
        if not answer.scroll_id:
            return


def _message(topic: str, broker: str | None, message: Any, most_body: int | None) -> Row:
    system = message.system_properties
    body = _body(message)
    return message_row(
        topic,
        broker,
        system.queue_id,
        system.queue_offset,
        system.message_id,
        system.tag if system.HasField("tag") else None,
        list(system.keys),
        stored_at(message),
        body[:most_body],
        dict(message.user_properties),
        len(body),
    )


def _letter(group: str, broker: str | None, message: Any, most_body: int | None) -> Row:
    found = _message(DLQ_PREFIX + group, broker, message, most_body)
    return found | {
        "consumer_group": group,
        "topic": topic_before(message) or None,
        "queue_id": None,
        "queue_offset": None,
        "origin_message_id": message.system_properties.dead_letter_queue.message_id or None,
        "attempts": None,
        "reason": None,
        "dead_lettered_timestamp": found["store_timestamp"],
        "dlq_queue_id": found["queue_id"],
        "dlq_queue_offset": found["queue_offset"],
    }


def _body(message: Any) -> bytes:
    """Decompressed, as a lake has it, where that can be done."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    body: bytes = message.body
    if message.system_properties.body_encoding != pb.GZIP:
        return body
    engine = zlib.decompressobj(wbits=47)  # zlib or gzip
    try:
        plain = engine.decompress(body, _LARGEST_BODY)
    except zlib.error:
        return body
    return plain if engine.eof else body


def _read(queues: list[Any]) -> list[Any]:
    """As the view `consumer_lag` has them: of users' topics that the group has been at, without queues of which there is
    neither a message nor an offset."""
    from structured_streaming.system_topics import is_of_brokers

    read = {each.topic for each in queues if each.HasField("committed") and not is_of_brokers(each.topic)}
    return [each for each in queues if each.topic in read and (each.end or each.HasField("committed"))]


def _lag(group: str, broker: str | None, queue: Any) -> Row:
    committed = int(queue.committed) if queue.HasField("committed") else None
    end = int(queue.end)  # 0: the queue is empty, which a lake cannot know
    behind = None if committed is None else end - committed
    return {
        "consumer_group": group,
        "topic": queue.topic,
        "broker": broker,
        "queue_id": queue.queue,
        "committed_offset": committed,
        "max_offset": end,
        "lag": behind if behind is None or behind >= 0 else None,
        "commit_timestamp": None,
    }


def _groups(calls: GatewayCalls) -> list[str]:
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    found = calls.admin("ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse).groups
    return sorted(each.name for each in found)


def _dead_groups(calls: GatewayCalls) -> list[tuple[str, int]]:
    """Groups with dead letters, also those that are deleted, and of each how many queues have them."""
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    listed = calls.admin("ListTopics", pb.ListTopicsRequest(include_system=True), pb.ListTopicsResponse)
    dead = [each for each in listed.topics if each.name.startswith(DLQ_PREFIX)]
    return sorted((each.name.removeprefix(DLQ_PREFIX), each.queues) for each in dead)


def _first(calls: GatewayCalls, topic: str) -> datetime | None:
    """When the oldest message of a topic in the log was stored; a broker tells it of groups alone."""
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

    groups = _groups(calls)
    if not groups:
        return None
    request = rpc.QueryTimeSpanRequest(group=pb.Resource(name=groups[0]), topics=[pb.Resource(name=topic)])
    answer = calls.public("QueryTimeSpan", request, rpc.QueryTimeSpanResponse, checked=False)
    first = [each.min_timestamp for each in answer.queue_time_span_list if each.min_timestamp > 0]
    return instant(0, min(first) * 1000) if first else None
