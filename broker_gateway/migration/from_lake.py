"""Starting an empty store from the lake: a broker that lost its disk.

The lake has every record of the logs that the broker had before. A new log of it must not give out queue offsets that
are taken, and should know the topics, the groups and how far these are. All of this goes into the journal as a complete
snapshot, which is on disk before anything is served.

| the log holds | then |
|---|---|
| messages | it is a log of its own: left alone |
| records of the journal at most, and its queues end below the lake's, or no snapshot is complete | is started from the lake; a crash meanwhile leaves this case again |
| records of the journal at most, the rest is as in the lake | was started from it before: left alone |

Messages that a group has not settled stay in the lake: its state names them (`delivery/lake_only.py`). Of a log that lost
its end, these are the messages of the lost end alone (`take_lost_end`).
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from broker_gateway.deferred.halves import HALF_TOPIC
from broker_gateway.deferred.put_off import TIMER_TOPIC
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import BrokerJournal, journal_at_rest
from broker_gateway.journal.replay import newest_snapshot
from broker_gateway.lake.broker_state import BrokerState, read_broker_state
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.metadata.catalog import MAX_QUEUES, Catalog, Topic
from broker_gateway.metadata.names import JOURNAL_TOPIC, NAME_PATTERN, RETRY_TOPIC_MAX_LENGTH
from broker_gateway.metadata.system_topics import is_system_topic
from broker_gateway.migration.put_off_messages import take_from_lake
from broker_gateway.runtime.clock import now_ms
from broker_gateway.runtime.errors import StartError
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
TOLD = 20
"""Names of brokers in a line."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What an empty store took from the lake; `waiting` messages are in the lake only."""

    logs: int
    topics: int
    groups: int
    queues: int
    waiting: int
    put_off: int = 0
    """Messages that wait for their time, or the end of their transaction."""


def start_from_lake(lake: Lake, store: MessageStore) -> Restored | None:
    """Has an empty store go on where the lake ends; None when there was nothing to do. Blocks.

    Raises StartError when the lake cannot be read, StoreError, OSError.
    """
    if not _holds_no_message(store):
        return None
    log.info("the store is empty; looking for this broker in the lake", lake=lake.location)
    state = _read(
        lake, store, f"the store {store.root} is empty: it has to know which queue offsets the lake has"
    )
    if not (state.logs or state.next_offsets):
        _tell_nothing_found(lake, store.broker)
        return None
    return None if _restored_before(store, state) else _restore(lake, store, state)


def _tell_nothing_found(lake: Lake, broker: str) -> None:
    """A wrong location or name would give out queue offsets twice without a word."""
    others = lake.brokers()
    if others is None:
        log.warning(
            "there is no lake in lakeLocation yet; queues begin at offset 0. If this broker has a lake, stop it now and name that",
            lake=lake.location,
        )
    elif others:
        log.warning(
            "the lake has other brokers and nothing of this one; queues begin at offset 0. If it is one of them, stop it now and set "
            "brokerName",
            broker=broker,
            lake=lake.location,
            lake_has=others[:TOLD],
        )


def take_lost_end(lake: Lake, store: MessageStore, catalog: Catalog, deliveries: DeliveryTable) -> int:
    """What happened in the end of a log that only the lake has, into the state that the journal has from before it; how many messages
    wait there. The queues have been raised to where the lake ends. Blocks. Raises StartError.

    Topics and groups are as in the lake, but for those that were deleted there. A group goes on behind what it had settled;
    what it had settled behind an open message comes again.
    """
    state = _read(lake, store, f"the log {store.log_id} goes on behind what the lake has of the one before")
    for topic in state.topics:
        catalog.restore_topic(topic, topic.name)
    for group in state.groups:
        catalog.restore_group(group, group.name)
    waiting = 0
    for queue in state.queues:
        lost_from = _local_end(store, queue.key.topic, queue.key.queue_id)
        here = deliveries.known(queue.key)
        if lost_from:
            first_open = queue.lake_only.from_offset(here.cursor if here is not None else queue.committed)
            cursor = min(first_open.first, lost_from) if first_open else lost_from
        else:  # `lake_only` has all that is open
            cursor = store.index.max_offset(queue.key.topic, queue.key.queue_id)
        if here is None:
            here = deliveries.restore(queue.key, cursor)
        elif here.cursor < cursor:
            here.restore_offsets(cursor, here.client_offset)
        for offset in [each for each in here.in_flight if each not in queue.lake_only]:
            here.restore_settled(offset)
        lost = queue.lake_only.from_offset(lost_from)
        here.restore_lake_only(here.lake_only.before(lost_from).followed_by(lost.messages, lost.spans))
        here.restore_reads_absences(False)
        waiting += here.lake_only.count
    return waiting


def _local_end(store: MessageStore, topic: str, queue_id: int) -> int:
    """The queue offset from which on the log that is here has nothing of the one before; 0: it has nothing of the queue."""
    index = store.index
    if absences := index.absences(topic, queue_id):
        return absences[-1].begin
    end = index.max_offset(topic, queue_id)
    return end if index.min_offset(topic, queue_id) < end else 0


def _read(lake: Lake, store: MessageStore, why: str) -> BrokerState:
    try:
        return read_broker_state(lake, store.broker, lambda table: log.info("reading", table=table))
    except LakeUnreachableError as error:
        raise StartError(
            f"lakeLocation={lake.location} cannot be read ({error}), and {why}. Make the lake readable, or start without "
            "lakeLocation, or with another lake"
        ) from error


def _holds_no_message(store: MessageStore) -> bool:
    """Nor ever did: none has expired. A queue may have an end all the same, from a start that was broken off."""
    index = store.index
    return store.min_offset == 0 and all(
        topic in (JOURNAL_TOPIC, TIMER_TOPIC, HALF_TOPIC)
        or index.min_offset(topic, queue_id) == index.max_offset(topic, queue_id)
        for topic, queue_id in index.queues()
    )


def _restored_before(store: MessageStore, state: BrokerState) -> bool:
    """Whether a complete snapshot is there, and has every queue's end."""
    _, snapshot = newest_snapshot(store)
    if not snapshot:
        return False
    journal_at_rest(store, Catalog(), DeliveryTable(lambda topic, queue_id: 0)).journal.replay()
    return all(
        store.index.max_offset(topic, queue_id) >= end
        for (topic, queue_id), end in state.next_offsets.items()
        if 0 <= queue_id < MAX_QUEUES
    )


def put_off_from_lake(lake: Lake, store: MessageStore, journaled: BrokerJournal) -> int:
    """What the lake says is put off is put off anew, and nothing before; how many messages. Blocks. Raises StartError."""
    try:
        found, journaled.taken_over.offset = take_from_lake(lake, store)
    except LakeUnreachableError as error:
        raise StartError(
            f"lakeLocation={lake.location} cannot be read ({error}), and what waited for its time is there alone. Make the lake "
            "readable, or start without lakeLocation"
        ) from error
    for problem in found.problems:
        log.warning(problem, lake=lake.location)
    return found.timers + found.levels + found.halves


def _restore(lake: Lake, store: MessageStore, state: BrokerState) -> Restored:
    catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
    journaled = journal_at_rest(store, catalog, deliveries)
    journal = journaled.journal
    journal.replay()
    for (topic, queue_id), end in state.next_offsets.items():
        store.index.raise_next(topic, queue_id, end)
    for (topic, queue_id), begin in state.begins.items():
        store.index.begin_at(topic, queue_id, begin)
    topics = [*state.topics, *_topics_of(state, store)]
    for each in topics:
        catalog.restore_topic(each, each.name)
    for group in state.groups:
        catalog.restore_group(group, group.name)
    for queue in state.queues:
        _, topic, queue_id = queue.key
        end = store.index.max_offset(topic, queue_id)
        restored = deliveries.restore(queue.key, max(end, queue.committed))
        restored.restore_lake_only(queue.lake_only)
    put_off = put_off_from_lake(lake, store, journaled)
    journal.write_snapshot()
    store.flush()
    return Restored(
        len(state.logs),
        len(topics),
        len(state.groups),
        len(state.queues),
        sum(queue.lake_only.count for queue in state.queues),
        put_off,
    )


def _topics_of(state: BrokerState, store: MessageStore) -> list[Topic]:
    """Topics as their messages show them, where the lake has no configuration: of a real broker, for one."""
    counts: dict[str, int] = {}
    for topic, queue_id in state.next_offsets:
        if not 0 <= queue_id < MAX_QUEUES or topic not in state.unlisted or not _may_be(topic):
            continue
        if not is_system_topic(topic, store.cluster, store.broker):
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return [Topic(name, count, count, created_ms=now_ms()) for name, count in counts.items()]


def _may_be(topic: str) -> bool:
    """Whether a topic may be called so: damage in the head of a record makes other names."""
    return len(topic) <= RETRY_TOPIC_MAX_LENGTH and NAME_PATTERN.fullmatch(topic) is not None
