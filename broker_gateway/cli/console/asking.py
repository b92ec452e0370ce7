"""Questions to gateways and to the lake, asked by threads. What they cannot answer is an AskError.

Messages, traces and dead letters are those of `lakebroker message`, `trace` and `dlq list`: the same code answers.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from broker_gateway.cli.console import lake_lists
from broker_gateway.cli.console.errors import AskError
from broker_gateway.cli.console.facts import (
    Broker,
    Found,
    Freshness,
    Group,
    Names,
    Story,
    Task,
    Told,
    Topic,
    TopicStatus,
)
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.console.stories import again_as, stories, was_given_up
from broker_gateway.cli.console.text import BODY, EXCERPT
from broker_gateway.cli.gateway_calls import GatewayCalls, NoSuchCall, Reached, connected, within
from broker_gateway.cli.output import Failure, fail, overheard
from broker_gateway.cli.questions.brokers import OfBrokers
from broker_gateway.cli.questions.letters import EVERY
from broker_gateway.cli.questions.rows import Row, totals
from broker_gateway.cli.questions.wanted import Answers, Wanted
from broker_gateway.metadata.names import DLQ_PREFIX, RETRY_PREFIX
from broker_gateway.runtime.clock import now_ms

MOST_MESSAGES = 20
MOST_EVENTS = 500
_MOST_AGAIN = 3
"""Messages of a look-up for which it is looked what they were sent again as."""
MOST_LETTERS = 200
ANSWERS_S = 55.0
"""What the calls of a question take together; before a tab's patience ends."""
_MINUTES = 24 * 60
_MINUTE_MS = 60_000
_MOST_TOPICS = 8
"""That moved in all of these minutes; of more, the newest part of them."""


@contextlib.contextmanager
def _answered() -> Iterator[None]:
    """What ends a command within is an AskError. Nothing is printed."""
    from structured_streaming.errors import LakeError, SourceError

    with overheard(), within(ANSWERS_S):
        try:
            yield
        except Failure as failure:
            raise AskError(failure.message) from None
        except (LakeError, SourceError) as error:
            raise AskError(str(error)) from error


class Places:
    """Gateways, a lake, or both. Any thread may ask."""

    def __init__(self, reached: Reached | None, lake: LakeEngine | None) -> None:
        self.reached = reached
        self.lake = lake

    @property
    def named(self) -> str:
        """For people."""
        gateways = [] if self.reached is None else [f"gateway {self.reached.named}"]
        return ", ".join(gateways + ([] if self.lake is None else [f"lake {self.lake.location}"]))

    @contextlib.contextmanager
    def hearing(self) -> Iterator[list[str]]:
        """What the lake tells of the questions within, in this thread: what their answers lack."""
        if self.lake is None:
            yield []
            return
        with self.lake.hearing() as told:
            yield told

    @_answered()
    def brokers(self) -> tuple[Broker, ...]:
        """Each that there is; one that does not answer says so in its `error`. Raises AskError where none can be looked for."""
        if self.reached is None:
            return ()
        return tuple([_broker(each) for each in self.reached.each()])

    @_answered()
    def tasks(self) -> tuple[Task, ...]:
        """Of all brokers. Raises AskError."""
        from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

        found = [
            Task(
                broker=calls.address,
                name=task.name,
                period_s=task.period_ms / 1000,
                runs=task.runs,
                failures=task.failures,
                last_ms=task.last_run_ms,
                took_s=task.took_us / 1e6,
                last_error=task.last_error,
                last_error_ms=task.last_error_ms,
            )
            for calls in self._gateways()
            for task in calls.admin("ListTasks", pb.ListTasksRequest(), pb.ListTasksResponse).tasks
        ]
        return tuple(found)

    @_answered()
    def names(self) -> Names:
        """Topics and groups: of the brokers, else of the lake. Raises AskError."""
        if self.reached is None:
            assert self.lake is not None
            return lake_lists.names(self.lake)
        return self._names_of_brokers()

    @_answered()
    def lag(self, groups: Iterable[str], names: Names) -> list[Row]:
        """What groups have before them, of each topic: rows of `TOTALS`. Raises AskError."""
        wanted = set(groups)
        if self.reached is None:
            assert self.lake is not None
            return lake_lists.lag(self.lake, wanted)
        answers = OfBrokers(self.reached)
        rows: list[Row] = []
        for calls in self._gateways():
            for group in sorted(wanted & names.at.get(calls.address, frozenset())):
                rows += answers.lag_at(calls, group, "")
        return totals(sorted(rows, key=lambda row: (row["consumer_group"], row["topic"])))

    @_answered()
    def lag_of(self, group: str) -> Told:
        """One group's lag, by queue: rows of `LAG`. Raises AskError."""
        with self._answering() as (answers, lacking):
            return Told(tuple(answers.lag(group, "")), lacking())

    def lag_by_minute(self, group: str) -> dict[str, list[tuple[int, int]]]:
        """What the lake has of the group's last day, up to the newest minute in which it moved, by topic: ends of minutes in ms since
        the epoch, and lag. Empty without a lake. Raises AskError.

        A queue that did not move in a minute has the lag that it had: what is summed is how much each queue's changed. What changed
        before the day counts in the day's first minute.
        """
        if self.lake is None:
            return {}
        rows = self.lake.rows(
            "WITH moves AS (SELECT topic, greatest(minute, max(minute) OVER () - INTERVAL 1 DAY) AS minute, "
            "coalesce(lag, 0) - coalesce(lag(lag) OVER ("
            "PARTITION BY topic, broker, queue_id ORDER BY minute), 0) AS change "
            "FROM consumer_lag_by_minute WHERE consumer_group = $group) "
            f"SELECT topic, epoch_ms(minute) + {_MINUTE_MS:d} AS at, "
            "sum(sum(change)) OVER (PARTITION BY topic ORDER BY minute)::BIGINT AS lag FROM moves GROUP BY topic, minute "
            f"ORDER BY minute DESC LIMIT {_MINUTES * _MOST_TOPICS:d}",
            {"group": group},
        )
        found: dict[str, list[tuple[int, int]]] = {}
        for row in reversed(rows):
            found.setdefault(row["topic"], []).append((row["at"], row["lag"]))
        return found

    @_answered()
    def topic_status(self, topics: Iterable[str]) -> dict[str, TopicStatus]:
        """What there is of topics. Raises AskError."""
        if self.reached is None:
            assert self.lake is not None
            return lake_lists.topic_status(self.lake, sorted(topics))
        from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
        from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb

        messages, newest = Counter[str](), dict[str, int]()
        for calls in self._gateways():
            for topic in topics:
                request = rpc.DescribeTopicStatusRequest(topic=pb.Resource(name=topic))
                answer = calls.public(
                    "DescribeTopicStatus", request, rpc.DescribeTopicStatusResponse, checked=False
                )
                if answer.status.code == pb.OK:
                    messages[topic] += _count(calls, answer.tags, "messages")
                    at = _count(calls, answer.tags, "lastUpdateTimestamp")
                    newest[topic] = max(newest.get(topic, 0), at)
        return {topic: TopicStatus(messages[topic], at) for topic, at in newest.items()}

    def freshness(self) -> tuple[Freshness, ...]:
        """How far the lake has got, by broker. Empty without a lake. Raises AskError."""
        if self.lake is None:
            return ()
        rows = self.lake.rows(
            "SELECT broker, batch, commit_timestamp AS committed, end_offset, "
            "greatest(log_end_offset - end_offset, 0) AS behind_bytes FROM reput_progress "
            "QUALIFY row_number() OVER (PARTITION BY broker ORDER BY batch DESC, end_offset DESC) = 1 "
            "ORDER BY broker LIMIT 1000"
        )
        return tuple([Freshness(**row) for row in rows])

    @_answered()
    def found(self, key: str, topic: str) -> Found:
        """Messages of a key or id, and what happened to them, the newest first. Raises AskError."""
        wanted = Wanted(MOST_MESSAGES, key=key, topic=topic)
        with self._answering() as (answers, lacking):
            messages = answers.messages(wanted)
            events = answers.trace(wanted._replace(most=MOST_EVENTS)) if messages else []
            said = lacking()
            found = self._sent_again(answers, stories(messages, events))
            if not messages:
                said += (f"no message {answers.looked(topic)}",)
        return Found(tuple(found), len(messages), said)

    @_answered()
    def newest(self, topic: str) -> Told:
        """Messages of a topic, the newest first, with the beginning of bodies: rows of `MESSAGES`. Raises AskError."""
        wanted, said = Wanted(MOST_MESSAGES, topic=topic), tuple[str, ...]()
        rows: list[Row] = []
        if self.reached is not None:  # whose logs have the newest
            try:
                rows = OfBrokers(self.reached, EXCERPT).messages(wanted)
            except Failure as failure:
                if self.lake is None:
                    raise
                said = (failure.message,)
            if self.lake is None or len(rows) == MOST_MESSAGES:
                return Told(tuple(rows))
        try:
            with self._answering(EXCERPT) as (answers, lacking):
                return Told(tuple(answers.messages(wanted)), tuple(dict.fromkeys((*said, *lacking()))))
        except AskError as error:
            if self.reached is None or said:
                raise
            return Told(tuple(rows), (f"{error}; shown is what brokers have",))

    @_answered()
    def dead_letters(self, group: str) -> Told:
        """A group's, with cut bodies: rows of `DEAD_LETTERS`. Raises AskError."""
        with self._answering(EXCERPT) as (answers, lacking):
            return Told(tuple(answers.dead_letters(group, EVERY, MOST_LETTERS)), lacking())

    @contextlib.contextmanager
    def _answering(self, most_body: int = BODY) -> Iterator[tuple[Answers, Callable[[], tuple[str, ...]]]]:
        """Who answers, and what tells what the answers until then lack."""
        from broker_gateway.cli.questions.lake import OfLake

        with contextlib.ExitStack() as held:
            told = held.enter_context(self.hearing())
            if self.lake is None:
                assert self.reached is not None
                answers: Answers = OfBrokers(self.reached, most_body)
            else:
                engine = held.enter_context(self.lake.asked())
                brokers = None if self.reached is None else OfBrokers(self.reached, most_body)
                answers = OfLake(engine, self.named, brokers=brokers, most_body=most_body)
            said = held.enter_context(overheard())

            def lacking() -> tuple[str, ...]:
                return tuple(dict.fromkeys([*said, *answers.cut_off, *filter(None, [answers.age()]), *told]))

            yield answers, lacking

    def _sent_again(self, answers: Answers, found: list[Story]) -> list[Story]:
        """With what dead letters were sent again as, also where it is not among what was found. It has their keys, by which a lake
        finds it; a broker would read its log for it."""
        if self.lake is None:
            return found
        asked = [story for story in found if not story.again and was_given_up(story)][:_MOST_AGAIN]
        for story in asked:
            first = story.messages[0]
            if first["keys"] and not first["topic"].startswith(DLQ_PREFIX):
                wanted = Wanted(MOST_MESSAGES, key=first["keys"][0], topic=first["topic"])
                again = again_as(first["message_id"], answers.messages(wanted))
                found[found.index(story)] = replace(story, again=again)
        return found

    def _gateways(self) -> Iterator[GatewayCalls]:
        return iter(()) if self.reached is None else self.reached.all()

    def _names_of_brokers(self) -> Names:
        from broker_gateway.metadata.system_topics import is_system_topic
        from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

        topics: dict[str, Topic] = {}
        groups: dict[str, Group] = {}
        dead: set[str] = set()
        at: dict[str, frozenset[str]] = {}
        asked = pb.ListTopicsRequest(include_system=True)
        for calls in self._gateways():
            cluster, broker = _named(calls)
            for each in calls.admin("ListTopics", asked, pb.ListTopicsResponse).topics:
                if each.name.startswith(DLQ_PREFIX):
                    dead.add(each.name.removeprefix(DLQ_PREFIX))
                if not each.name.startswith((DLQ_PREFIX, RETRY_PREFIX)) and not is_system_topic(
                    each.name, cluster, broker
                ):
                    before = topics.get(each.name)
                    types = ", ".join(each.accept_message_types) or "all"
                    queues = each.queues + (before.queues if before else 0)
                    topics[each.name] = Topic(each.name, queues, types)
            known = calls.admin("ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse).groups
            groups |= {each.name: Group(each.name, each.retry_max_times, each.fifo) for each in known}
            at[calls.address] = frozenset(each.name for each in known)
        return Names(
            tuple(topics[name] for name in sorted(topics)),
            tuple(groups[name] for name in sorted(groups)),
            tuple(sorted(dead)),
            at,
        )


def _count(calls: GatewayCalls, tags: Mapping[str, str], name: str) -> int:
    """One that a gateway tells as text. Ends the question where it is none."""
    text = tags.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        fail(
            f"the gateway at {calls.address} answers {name} {text[:100]!r}, which is no count; is it a lakebroker?"
        )
    return int(text)


def _named(calls: GatewayCalls) -> tuple[str, str]:
    """Cluster and broker, by which some topics of the broker's own are called; empty where an earlier version does not say them."""
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    try:
        told = calls.admin("DescribeBroker", pb.DescribeBrokerRequest(), pb.DescribeBrokerResponse)
    except NoSuchCall:
        return "", ""
    return told.cluster, told.broker


def _broker(reached: Reached) -> Broker:
    from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as rpc
    from lakebroker_pb.lakebroker.admin.v1 import admin_pb2 as pb

    address = reached.gateway
    try:
        with _answered(), connected(address, reached.token_file, reached.tls_ca) as calls:
            try:
                told = calls.admin("DescribeBroker", pb.DescribeBrokerRequest(), pb.DescribeBrokerResponse)
            except NoSuchCall:
                told = None
            stats = calls.public(
                "GetProxyRuntimeStats", rpc.GetProxyRuntimeStatsRequest(), rpc.GetProxyRuntimeStatsResponse
            )
    except AskError as error:
        return Broker(address, str(error))
    rates = {
        "in_rate": stats.in_tps,
        "out_rate": stats.out_tps,
        "connections": stats.connections,
        "producers": stats.producers,
        "consumers": stats.consumers,
    }
    if told is None:
        return Broker(address, earlier=True, **rates)
    behind = told.HasField("behind_bytes")
    return Broker(
        address=address,
        name=told.broker,
        cluster=told.cluster,
        version=told.version,
        role=told.role,
        up_s=max(now_ms() - told.started_ms, 0) / 1000,
        log_bytes=told.max_offset - told.min_offset,
        unflushed_bytes=told.max_offset - told.flushed_offset,
        disk_total=told.disk_total,
        disk_free=told.disk_free,
        hours_left=told.hours_left if told.HasField("hours_left") else None,
        behind_bytes=told.behind_bytes if behind else None,
        behind_records=told.behind_records if behind else None,
        behind_s=told.behind_s if behind else None,
        waiting=told.waiting_messages,
        halves=told.half_messages,
        **rates,
    )
