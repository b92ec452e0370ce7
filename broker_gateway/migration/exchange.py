"""Handing a store over: ours to a real broker, with `config/` as that one reads it, and a real broker's to us.

Where both sides know something of a store, the one that ran last is right: `export_to_rocketmq` writes what we know over
the broker's files, `import_from_rocketmq` what its files say over ours, for each topic, group and queue that they name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from broker_gateway.deferred.halves import CheckTimes, HalfMeaning
from broker_gateway.deferred.pending import Meaning, Pending
from broker_gateway.deferred.timers import TimerMeaning
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import BrokerJournal, journal_at_rest
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import MAX_QUEUES, Catalog, Topic
from broker_gateway.metadata.group_configuration import lite_bind_topic
from broker_gateway.metadata.system_topics import is_system_topic
from broker_gateway.metadata.topic_configuration import has_batch_queues
from broker_gateway.migration.pop_state import read_check_points, restore_in_flight, write_check_points
from broker_gateway.migration.put_off_messages import PutOffMessages, hand_back, take_over
from broker_gateway.migration.retry_moves import move_retries
from broker_gateway.migration.rocketmq_files import (
    CONFIG_FOLDER,
    FILES,
    Config,
    ConfigFileError,
    read_config,
    write_config,
)
from broker_gateway.runtime.clock import now_ms
from store.counting import counted
from store.delay_levels import DEFAULT_DELAY_LEVELS_MS
from store.errors import ErasedError, StoreDamagedError
from store.lite_queues import lite_topic_of
from store.log.record import Host, Record
from store.log.recovery import COMMIT_LOG_FOLDER, commit_log_folders, load_identity
from store.log.segment import list_segments
from store.message_store import MessageStore
from store.opening import StoreOptions

KV_STORE_FOLDER = "kvStore"
"""Where `popConsumerKVServiceEnable` keeps what POP consumers hold, in RocksDB."""


@dataclass(slots=True)
class ImportReport:
    """What was taken; `problems` says what could not be, and what became of it."""

    topics: int = 0
    groups: int = 0
    offsets: int = 0
    in_flight: int = 0
    retries: int = 0
    put_off: PutOffMessages = field(default_factory=PutOffMessages)
    problems: list[str] = field(default_factory=list)


def export_to_rocketmq(root: Path, *, offsets_only: bool = False, with_erased: bool = False) -> list[Path]:
    """Cuts a torn tail, as a start does, and writes `config/` from the journal; returns what was written.

    What is in flight becomes check points of POP in the log, unless `offsets_only`: then the offset of a queue is the
    first that is not settled, and what was settled behind it is delivered again.
    Raises StoreLockedError while a broker runs on it, StoreDamagedError, ConfigFileError, OSError; ConfigFileError also for
    topics whose queues are batches; ErasedError where the log has erased records, unless `with_erased`.
    """
    identity = load_identity(root)
    if identity is None:
        raise StoreDamagedError(f"{root} is no store of ours: it has no lakebroker.json")
    store = _open(root, identity.broker, identity.cluster)
    try:
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        journaled = journal_at_rest(store, catalog, deliveries)
        timers = _pending(store, journaled, TimerMeaning(DEFAULT_DELAY_LEVELS_MS))
        # when halves are due does not matter here
        halves = _pending(store, journaled, HalfMeaning(CheckTimes(0, 0)))
        journaled.journal.replay()
        _check_queues(catalog)
        if not with_erased:
            _check_erased(store)
        handed = hand_back(store, root, _records(timers), _records(halves), now_ms())
        offsets = {state.key: state.consumer_offset for state in deliveries.queues()} | handed
        if not offsets_only:
            offsets = write_check_points(store, deliveries, partial(_in_order, catalog), now_ms()) | handed
    finally:
        store.close()  # what is in flight is on disk before the offsets behind it say so
    return write_config(root, catalog, offsets, now_ms())


def _pending(store: MessageStore, journaled: BrokerJournal, meaning: Meaning) -> Pending:
    found = Pending(store, meaning, SnapshotPace(1 << 62), journaled.taken_over)
    journaled.journal.register(found)
    return found


def _records(pending: Pending) -> Iterator[Record]:
    """What is put off, by when it is due."""
    for key in pending.table.columns().key.tolist():
        record = pending.record(key)
        if record is not None:
            yield record


def _check_queues(catalog: Catalog) -> None:
    batches = sorted(topic.name for topic in catalog.topics() if has_batch_queues(topic))
    if batches:
        raise ConfigFileError(
            f"{counted(len(batches), 'topic')} {'has' if len(batches) == 1 else 'have'} queue.type BatchCQ, the first {batches[0]!r}: their queue files cannot be written, "
            "and a real broker does not start with others; delete these topics (mqadmin deleteTopic) before"
        )


def _check_erased(store: MessageStore) -> None:
    erased = store.erased.offsets
    if len(erased):
        raise ErasedError(
            f"{counted(len(erased), 'record')} of the log {'is' if len(erased) == 1 else 'are'} erased, the last at physical offset {erased[-1]}, and a real broker, which knows "
            "of no erasures, would deliver them; wait until retention has removed their segments, or give --with-erased"
        )


def _in_order(catalog: Catalog, name: str) -> bool:
    group = catalog.group(name)
    return group is not None and (group.fifo or bool(lite_bind_topic(group)))


def import_from_rocketmq(
    root: Path, broker: str, cluster: str, *, skip_damaged: bool = False
) -> ImportReport:
    """Makes a real broker's store ours: topics, groups, offsets and what its POP consumers hold go into the journal.

    `broker` and `cluster` name a store that has no identity yet. `skip_damaged` leaves out check points that cannot
    be read. Raises StoreLockedError while a broker runs on it, StoreDamagedError, ConfigFileError, OSError; then
    the store is as it was, but for its recovery and copies of retries (see `retry_moves.py`).
    """
    now = now_ms()
    config = read_config(root, now)
    identity = load_identity(root)
    if identity is not None:
        broker, cluster = identity.broker, identity.cluster
    config.topics = [each for each in config.topics if not is_system_topic(each.name, cluster, broker)]
    result = ImportReport(
        len(config.topics), len(config.groups), len(config.offsets), problems=config.problems
    )
    for name, instead in FILES.items():
        if name not in config.versions:
            result.problems.append(f"{root / CONFIG_FOLDER / name} is missing: {instead}")
    _check_stores(root, skip_damaged, result)
    store = _open(root, broker, cluster)
    try:
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        journaled = journal_at_rest(store, catalog, deliveries)
        journal = journaled.journal
        journal.replay()
        if "topics.json" not in config.versions:
            config.topics = _topics_of(store, now)
        for topic in config.topics:
            catalog.restore_topic(topic, topic.name)
        for group in config.groups:
            catalog.restore_group(group, group.name)
        catalog.versions.update(config.versions)
        for key, offset in config.offsets.items():
            deliveries.queue(key).reset(offset)
        result.topics = len(config.topics)
        _take_check_points(store, deliveries, config, skip_damaged, result)
        result.put_off, journaled.taken_over.offset = take_over(store, root, config.offsets)
        result.problems += result.put_off.problems
        moved = move_retries(store, catalog, deliveries, now)
        result.retries = moved.count
        result.problems += moved.problems
        journal.write_snapshot()
    finally:
        store.close()
    return result


def _topics_of(store: MessageStore, now_ms: int) -> list[Topic]:
    """Topics as the log shows them."""
    counts: dict[str, int] = {}
    for topic, queue_id in store.index.queues():
        if lite_topic_of(topic) is not None:
            continue  # of its parent topic
        if not is_system_topic(topic, store.cluster, store.broker) and 0 <= queue_id < MAX_QUEUES:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    return [Topic(name, count, count, created_ms=now_ms) for name, count in counts.items()]


def _check_stores(root: Path, skip_damaged: bool, result: ImportReport) -> None:
    """Looks for pop state that is not in the log."""
    if (root / KV_STORE_FOLDER).is_dir():
        text = (
            f"{root / KV_STORE_FOLDER} may hold what POP consumers had in flight (popConsumerKVServiceEnable), which "
            "cannot be read"
        )
        if not skip_damaged:
            raise ConfigFileError(
                f"{text}: start that broker again and have `mqadmin exportPopRecord` move it into the log, "
                "stop it and remove the folder, or give --skip-damaged to go on without"
            )
        result.problems.append(f"{text}: left out")


def _take_check_points(
    store: MessageStore, deliveries: DeliveryTable, config: Config, skip_damaged: bool, result: ImportReport
) -> None:
    points = read_check_points(store, config.offsets)
    if points.damaged and not skip_damaged:
        raise ConfigFileError(
            f"{len(points.damaged)} check points cannot be read, so that messages in flight would be lost; first "
            f"{points.damaged[0]}. Reset the offset of the group to before them in that broker, or give "
            "--skip-damaged to go on without"
        )
    result.problems += [f"{each}: left out" for each in points.damaged]
    result.problems += [f"{each}: what it acknowledges is delivered again" for each in points.ignored]
    restored = restore_in_flight(store, deliveries, points)
    result.in_flight = restored.in_flight
    if restored.gone:
        result.problems.append(
            f"{counted(restored.gone, 'message')} in flight {'is' if restored.gone == 1 else 'are'} no longer in the log: left out"
        )


def _open(root: Path, broker: str, cluster: str) -> MessageStore:
    identity = load_identity(root)
    segments = list_segments(root / COMMIT_LOG_FOLDER)
    return MessageStore.open(
        root,
        StoreOptions(
            broker=broker,
            cluster=cluster,
            store_host=Host("127.0.0.1", 0),
            segment_size=segments[0][1].stat().st_size if segments else 1 << 30,
            commit_log_paths=commit_log_folders(root, identity)
            if identity and identity.commit_log_folders
            else (),
        ),
    )
