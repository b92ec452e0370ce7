"""Topics by hand: created, changed, deleted, listed, and how full their queues are."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from broker_gateway.cluster.topics import shown_topic, topic_config, with_retry_topics
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.deliveries import DeliveryJournal
from broker_gateway.journal.resources import topic_deleted
from broker_gateway.messaging.checks import check_topic, shown
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.metadata.catalog import MAX_QUEUES, Catalog, CatalogFullError, Topic
from broker_gateway.metadata.message_types import TOPIC_MESSAGE_TYPES, message_types_of
from broker_gateway.metadata.system_topics import is_system_topic, system_topics
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.clock import now_ms
from store.errors import StoreError
from store.message_store import MessageStore

log = structlog.get_logger(__name__)

MESSAGE_TYPE = "message.type"
"""The attribute of a topic that says which messages it takes."""
_AT_ONCE = 100
"""Topics that are changed before others are served."""


class QueueStatus(NamedTuple):
    """Offsets of a queue; when its last message was stored, ms, 0 without one."""

    queue_id: int
    min_offset: int
    max_offset: int
    last_update_ms: int


def message_types(changes: Mapping[str, str], known: Topic | None, *, mixed: bool) -> tuple[str, ...]:
    """What the topic accepts after these changes of attributes (`+name` sets, `-name` removes); MIXED only if it may be.

    Raises RequestError.
    """
    kinds = known.accept_message_types if known is not None else ("NORMAL",)
    for change, value in changes.items():
        if change[:1] not in "+-" or change[1:] != MESSAGE_TYPE:
            raise RequestError(
                f"attribute {shown(change)} cannot be changed here; +{MESSAGE_TYPE}=TYPE and -{MESSAGE_TYPE} can",
                ResponseCode.INVALID_PARAMETER,
            )
        if change[0] == "-":
            kinds = ("NORMAL",)
        elif value not in TOPIC_MESSAGE_TYPES:
            raise RequestError(
                f"{MESSAGE_TYPE} {shown(value)} is unknown; use one of {', '.join(TOPIC_MESSAGE_TYPES)}",
                ResponseCode.INVALID_PARAMETER,
            )
        elif value == "MIXED" and not mixed:
            raise RequestError(
                "MIXED message type is not supported; set enableMixedMessageType=true to allow it",
                ResponseCode.INVALID_PARAMETER,
            )
        else:
            kinds = message_types_of(value)
    return kinds


class TopicAdministration:
    """Topics of the broker; what changes them returns when the change is in the log.

    `changed` is told a topic that was deleted; the catalog tells of the others.
    """

    def __init__(
        self,
        config: GatewayConfig,
        catalog: Catalog,
        store: MessageStore,
        deliveries: DeliveryTable,
        changes: DeliveryJournal,
        changed: Callable[[str], None],
    ) -> None:
        self._changed = changed
        self._system = frozenset(topic.name for topic in system_topics(config))
        self._cluster = config.broker.broker_cluster_name
        self._broker = config.broker.broker_name
        self._catalog = catalog
        self._store = store
        self._deliveries = deliveries
        self._changes = changes
        self._journal = changes.journal
        catalog.listen(topic_deleted=self._deleted)
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._mixed = config.broker.enable_mixed_message_type

    def known(self, name: str) -> Topic:
        """A topic, or the retry topic of a group. TOPIC_NOT_EXIST."""
        topic = shown_topic(self._catalog, name)
        if topic is None:
            raise RequestError(f"topic[{name}] not exist", ResponseCode.TOPIC_NOT_EXIST)
        return topic

    def all(self) -> Callable[[], list[Topic]]:
        """Every topic as of now, and the retry topic of every group, in the order of their names; for a thread to call."""
        topics, groups = list(self._catalog.topics()), list(self._catalog.groups())
        return lambda: sorted(with_retry_topics(topics, groups), key=lambda topic: topic.name)

    def config(self, topic: Topic) -> TopicConfig:
        """The topic as RocketMQ's programs see it."""
        return topic_config(topic, system=topic.name in self._system)

    async def put(self, *asked: TopicConfig) -> None:
        """Creates or changes topics; `attributes` are changes of them. INVALID_PARAMETER, SYSTEM_ERROR.

        Nothing is changed when one of them is refused.
        """
        topics = [self._topic(each) for each in asked]
        for number, topic in enumerate(topics, 1):
            roll_back = partial(self._catalog.roll_back_topic, self._catalog.topic(topic.name), topic.name)
            try:
                with refused_by_log(), self._journal.kept(roll_back):
                    self._catalog.put_topic(topic, shrink=True)
            except CatalogFullError as error:
                raise RequestError(str(error)) from error
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _topic(self, asked: TopicConfig) -> Topic:
        name = self._name(asked.topic_name)
        for what, value, least in (
            ("readQueueNums", asked.read_queue_nums, 1),
            ("writeQueueNums", asked.write_queue_nums, 1),
        ):
            if not least <= value <= MAX_QUEUES:
                raise RequestError(
                    f"{what} {value} is outside of {least} to {MAX_QUEUES}", ResponseCode.INVALID_PARAMETER
                )
        if not 0 <= asked.perm <= 7:
            raise RequestError(
                f"perm {asked.perm} is outside of 0 to 7: 2 (write), 4 (read), 6 (both), and 1 (inherit) with them",
                ResponseCode.INVALID_PARAMETER,
            )
        for what, found, usual in (
            ("topicSysFlag", asked.topic_sys_flag, 0),
            ("topicFilterType", asked.topic_filter_type, "SINGLE_TAG"),
        ):
            if found != usual:
                raise RequestError(
                    f"{what} {found} is not supported; leave it {usual}", ResponseCode.INVALID_PARAMETER
                )
        known = self._catalog.topic(name)
        kinds = message_types(asked.attributes, known, mixed=self._mixed)
        return Topic(
            name,
            asked.read_queue_nums,
            asked.write_queue_nums,
            asked.perm,
            kinds,
            now_ms(),
            asked.order,
        )

    async def delete(self, name: str) -> None:
        """Deletes a topic and every group's state on it; one that is not there is deleted already.

        Its messages stay in the log until it is cut; a topic of the same name begins behind them.
        """
        if not name.strip():
            raise RequestError("The specified topic is blank.", ResponseCode.INVALID_PARAMETER)
        if is_system_topic(name, self._cluster, self._broker):
            raise RequestError(
                f"The topic[{name[:255]}] is conflict with system topic.", ResponseCode.INVALID_PARAMETER
            )
        with refused_by_log():
            if self._catalog.delete_topic(name) is not None:
                self._changed(name)
                log.info("topic deleted", topic=name)

    def status(self, name: str, queue_id: int) -> QueueStatus:
        """Of one queue of a topic."""
        index = self._store.index
        end = index.max_offset(name, queue_id)
        last_ms = store_time_of(self._store, name, queue_id, end - 1)
        return QueueStatus(queue_id, index.min_offset(name, queue_id), end, last_ms)

    def _name(self, name: str) -> str:
        check_text("topic", name)
        try:
            check_topic(name, self._cluster, self._broker)
        except ServiceError as error:
            raise RequestError(error.message, ResponseCode.INVALID_PARAMETER) from error
        return name

    def _deleted(self, topic: Topic) -> None:
        """What the log does not take is not done."""
        keys = self._deliveries.keys_of_topic(topic.name)
        index = self._store.index
        count = topic.queues
        known = [
            queue_id for name, queue_id in index.queues() if name == topic.name and queue_id < MAX_QUEUES
        ]
        firsts = [index.max_offset(topic.name, each) for each in range(max([count, *(k + 1 for k in known)]))]
        self._changes.removed(keys, topic_deleted(self._catalog, topic, firsts))
        for key in keys:
            self._deliveries.forget(key)
        for queue_id, first in enumerate(firsts):
            if first:
                index.begin_at(topic.name, queue_id, first)


def check_text(what: str, name: str) -> None:
    """INVALID_PARAMETER for a name that is not ASCII; not all of those can be UTF-8 (lone surrogates)."""
    if not name.isascii():
        raise RequestError(
            f"{what} {shown(name)} may hold only letters, digits and any of % | - _",
            ResponseCode.INVALID_PARAMETER,
        )


@contextlib.contextmanager
def refused_by_log() -> Iterator[None]:
    """What the log does not take is a RequestError."""
    try:
        yield
    except (StoreError, OSError) as error:
        raise RequestError(f"it could not be written to the log, and is not done: {error}") from error


def store_time_of(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> int:
    """When a message was stored, ms; 0 when the log has it no more."""
    if queue_offset < store.index.min_offset(topic, queue_id):
        return 0
    offsets, sizes, _ = store.index.entries(topic, queue_id, queue_offset, 1)
    if not len(offsets) or not sizes[0]:
        return 0
    return store.record(int(offsets[0]), int(sizes[0])).store_timestamp
