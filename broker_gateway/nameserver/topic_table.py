"""Which broker name has which topics: part of the route table, which says who may put what.

| table | key | value |
|---|---|---|
| queues | topic, broker name | queues and permission |
| mappings | topic, broker name | mapping of a static topic |

A topic is on a broker when it is among those of the broker's name: `queues` and `mappings` have more of brokers that
went, until `cleanup` has cleared them. What a broker name has counts for who holds it (`quotas`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from broker_gateway.nameserver.quotas import Held, Holder
from broker_gateway.nameserver.topic_cleanup import TopicCleanup
from broker_gateway.protocol.body.route import QueueData
from broker_gateway.protocol.body.topic_config import PERM_READ, PERM_WRITE, TopicConfig

_T = TypeVar("_T")


class TopicTable:
    """`changed` is told when lists of topics change, `later` when there is something for `cleanup` to clear."""

    def __init__(self, held: Held, changed: Callable[[], None], later: Callable[[], None]) -> None:
        self._held = held
        self._changed = changed
        self.queues: dict[str, dict[str, QueueData]] = {}
        self.mappings: dict[str, dict[str, Any]] = {}
        self._by_name: dict[str, dict[str, None]] = {}
        self.cleanup = TopicCleanup(self._clear, later)

    def of(self, broker_name: str) -> KeysView[str]:
        """Topics of the brokers of a name."""
        return self._by_name.get(broker_name, {}).keys()

    def has(self, broker_name: str, topic: str) -> bool:
        return topic in self._by_name.get(broker_name, ())

    def queue_datas(self, topic: str) -> Mapping[str, QueueData]:
        """Of the brokers that have the topic, by name."""
        return self._without_removed(topic, self.queues.get(topic, {}))

    def mappings_of(self, topic: str) -> Mapping[str, Any] | None:
        """Of a static topic, by broker name; None when there are none."""
        return self._without_removed(topic, self.mappings.get(topic, {})) or None

    def check_topics(self, broker_name: str, topics: Iterable[str], holder: Holder) -> None:
        """Whether a broker name may have these topics too. Raises RequestError."""
        new = sum(not self.has(broker_name, each) for each in topics)
        self._held.queue_datas.check(broker_name, len(self.of(broker_name)) + new, holder)

    def check_mappings(self, broker_name: str, mappings: Mapping[str, Any], holder: Holder) -> None:
        """Whether a broker name may have these mappings too. Raises RequestError."""
        more = sum(
            _weight(each) - _weight(self._mapping(broker_name, topic)) for topic, each in mappings.items()
        )
        held = self._held.mapped_queues
        held.check(broker_name, held.of(broker_name) + more, holder)

    def hold(self, broker_name: str, holder: Holder) -> None:
        """The topics of a broker name count for `holder` from now on."""
        self._held.queue_datas.hold(broker_name, len(self.of(broker_name)), holder)

    def take(
        self, broker_name: str, configs: Mapping[str, TopicConfig], *, read_only: bool, all_of_them: bool
    ) -> None:
        """Topics as a broker registered them: those that are not there yet, or `all_of_them`."""
        alike: dict[tuple[int, ...], QueueData] = {}  # most topics of a broker have the same numbers
        for name, config in configs.items():
            if all_of_them or not self.has(broker_name, name):
                perm = config.perm & ~PERM_WRITE if read_only else config.perm
                numbers = (config.read_queue_nums, config.write_queue_nums, perm, config.topic_sys_flag)
                queue_data = alike.get(numbers)
                if queue_data is None:
                    queue_data = alike[numbers] = QueueData(broker_name, *numbers)
                self.put(name, queue_data)

    def take_mappings(self, broker_name: str, given: Mapping[str, Any], holder: Holder) -> set[str]:
        """Mappings of static topics that a broker registered; other brokers' names in them, which are passed over."""
        others, held = set(), self._held.mapped_queues.of(broker_name)
        for topic, mapping in given.items():
            if mapping["bname"] != broker_name:
                others.add(mapping["bname"])
            elif self.has(broker_name, topic):
                mappings = self.mappings.setdefault(topic, {})
                held += _weight(mapping) - _weight(mappings.get(broker_name))
                mappings[broker_name] = mapping
        self._held.mapped_queues.hold(broker_name, held, holder)
        return others

    def put(self, topic: str, queue_data: QueueData) -> None:
        """Adds a topic to a broker name, or changes it."""
        topics = self._by_name.setdefault(queue_data.broker_name, {})
        if topic not in topics:
            if self.cleanup:
                self._forget(topic, queue_data.broker_name)
                self.cleanup.clear(1)  # who brings topics faster than they are cleared clears as many
            topics[topic] = None
        queues = self.queues.setdefault(topic, {})
        before = queues.get(queue_data.broker_name)
        if before is not queue_data and before != queue_data:
            queues[queue_data.broker_name] = queue_data
            self._changed()

    def drop(self, topic: str, broker_name: str) -> None:
        """Takes a topic from a broker name; nothing when it does not have it."""
        if not self.has(broker_name, topic):
            return
        mapped, weight = self._held.mapped_queues, _weight(self._mapping(broker_name, topic))
        mapped.put(broker_name, mapped.of(broker_name) - weight)
        topics = self._by_name[broker_name]
        del topics[topic]
        self._held.queue_datas.put(broker_name, len(topics))
        if not topics:
            del self._by_name[broker_name]
        self._forget(topic, broker_name)

    def drop_missing(self, broker_name: str, topics: Iterable[str]) -> None:
        """Takes those from a broker name that are not among `topics`."""
        for topic in set(self.of(broker_name)) - set(topics):
            self.drop(topic, broker_name)

    def drop_name(self, broker_name: str) -> None:
        """No route has topics of the name from now on; the tables have them until they are cleared."""
        self._held.queue_datas.put(broker_name, 0)
        self._held.mapped_queues.put(broker_name, 0)
        self.cleanup.add(broker_name, self._by_name.pop(broker_name, {}))

    def wipe_write_perm(self, broker_name: str) -> int:
        """Takes the permission to write from the topics of a broker name; how many there are."""
        return self._set_perm(broker_name, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, broker_name: str) -> int:
        """Gives the topics of a broker name permission to read and write; how many there are."""
        return self._set_perm(broker_name, lambda _: PERM_READ | PERM_WRITE)

    def _set_perm(self, broker_name: str, perm: Callable[[int], int]) -> int:
        topics = self._by_name.get(broker_name, {})
        changed: dict[QueueData, QueueData] = {}
        for topic in topics:
            queues = self.queues[topic]
            found = queues[broker_name]
            if found not in changed:
                changed[found] = replace(found, perm=perm(found.perm))
            queues[broker_name] = changed[found]
        return len(topics)

    def _without_removed(self, topic: str, by_name: Mapping[str, _T]) -> Mapping[str, _T]:
        if not self.cleanup:
            return by_name
        return {name: each for name, each in by_name.items() if self.has(name, topic)}

    def _mapping(self, broker_name: str, topic: str) -> dict[str, Any] | None:
        return self.mappings.get(topic, {}).get(broker_name) if self.has(broker_name, topic) else None

    def _clear(self, topic: str, broker_name: str) -> None:
        """Of a broker that went; one of its name may have come since."""
        if not self.has(broker_name, topic):
            self._forget(topic, broker_name)

    def _forget(self, topic: str, broker_name: str) -> None:
        """Takes the topic on a broker out of the tables."""
        queues = self.queues.get(topic)
        if queues is None or queues.pop(broker_name, None) is None:
            return
        self._changed()
        if not queues:
            del self.queues[topic]
        mappings = self.mappings.get(topic)
        if mappings is not None:
            mappings.pop(broker_name, None)
            if not mappings:
                del self.mappings[topic]


def _weight(mapping: dict[str, Any] | None) -> int:
    """What a mapping counts for."""
    return 0 if mapping is None else 1 + len(mapping.get("currIdMap", ()))
