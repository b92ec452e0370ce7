"""Topics as RocketMQ's programs see them, and as they ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker_gateway.cluster.topics import shown_topic, topic_config, with_retry_topics
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.topics import Topics
from broker_gateway.metadata.catalog import Catalog, Topic
from broker_gateway.metadata.message_types import TOPIC_MESSAGE_TYPES, message_types_of
from broker_gateway.metadata.system_topics import system_topics
from broker_gateway.protocol.body.topic_config import TopicConfig
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.runtime.clock import now_ms

MESSAGE_TYPE = "message.type"
"""The attribute of a topic that says which messages it takes."""


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
    """A retry topic of each group is shown, too; nothing of it exists."""

    def __init__(self, config: GatewayConfig, catalog: Catalog, topics: Topics) -> None:
        self._system = frozenset(topic.name for topic in system_topics(config))
        self._catalog = catalog
        self._topics = topics
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
        """Creates or changes topics; `attributes` are changes of them. Nothing is changed when one of them is refused.

        Raises RequestError, and what `Topics.put` does.
        """
        await self._topics.put_all(*[self._topic(each) for each in asked])

    def delete(self, name: str) -> None:
        """As `Topics.delete`."""
        self._topics.delete(name)

    def _topic(self, asked: TopicConfig) -> Topic:
        check_ascii("topic", asked.topic_name)
        for what, found, usual in (
            ("topicSysFlag", asked.topic_sys_flag, 0),
            ("topicFilterType", asked.topic_filter_type, "SINGLE_TAG"),
        ):
            if found != usual:
                raise RequestError(
                    f"{what} {found} is not supported; leave it {usual}", ResponseCode.INVALID_PARAMETER
                )
        return Topic(
            asked.topic_name,
            asked.read_queue_nums,
            asked.write_queue_nums,
            asked.perm,
            message_types(asked.attributes, self._catalog.topic(asked.topic_name), mixed=self._mixed),
            now_ms(),
            asked.order,
        )


def check_ascii(what: str, name: str) -> None:
    """INVALID_PARAMETER for a name that is not ASCII; not all of those can be UTF-8 (lone surrogates)."""
    if not name.isascii():
        raise RequestError(
            f"{what} {shown(name)} may hold only letters, digits and any of % | - _",
            ResponseCode.INVALID_PARAMETER,
        )
