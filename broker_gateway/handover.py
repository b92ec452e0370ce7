"""Handing a store over: ours to a real broker, with `config/` as that one reads it, and a real broker's to us.

Where both sides know something of a store, the one that ran last is right: `hand_over` writes what we know over
the broker's files, `take_over` what its files say over ours, for each topic, group and queue that they name.
"""

from __future__ import annotations

from pathlib import Path

from broker_gateway.clock import now_ms
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.replay import replay
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.metadata.names import is_system_topic
from broker_gateway.metadata.rocketmq_files import Config, read_config, write_config
from store.errors import StoreDamagedError
from store.message_store import MessageStore
from store.record import Host
from store.recovery import COMMIT_LOG_FOLDER, commit_log_folders, load_identity
from store.segment import list_segments


def hand_over(root: Path) -> list[Path]:
    """Cuts a torn tail, as a start does, and writes `config/` from the journal; returns what was written.

    Raises StoreLockedError while a broker runs on it, StoreDamagedError, OSError.
    """
    identity = load_identity(root)
    if identity is None:
        raise StoreDamagedError(f"{root} is no store of ours: it has no lakebroker.json")
    store = _open(root, identity.broker, identity.cluster)
    try:
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        replay(store, catalog, deliveries)
        return write_config(root, catalog, deliveries.queues(), now_ms())
    finally:
        store.close()


def take_over(root: Path, broker: str, cluster: str) -> Config:
    """Makes a real broker's store ours: topics, groups and offsets of its `config/` go into the journal.

    `broker` and `cluster` name a store that has no identity yet. Raises StoreLockedError while a broker runs on
    it, StoreDamagedError, ConfigFileError, OSError; then the store is as it was, but for its recovery.
    """
    now = now_ms()
    config = read_config(root, now)
    identity = load_identity(root)
    if identity is not None:
        broker, cluster = identity.broker, identity.cluster
    config.topics = [each for each in config.topics if not is_system_topic(each.name, cluster, broker)]
    store = _open(root, broker, cluster)
    try:
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        replayed = replay(store, catalog, deliveries)
        journal = Journal(store, catalog, deliveries, 1 << 62, lambda work: None)
        journal.replayed_to(replayed.snapshot_offset)
        for topic in config.topics:
            catalog.restore_topic(topic, topic.name)
        for group in config.groups:
            catalog.restore_group(group, group.name)
        for key, offset in config.offsets.items():
            deliveries.queue(key).reset(offset)
        journal.write_snapshot()
    finally:
        store.close()
    return config


def _open(root: Path, broker: str, cluster: str) -> MessageStore:
    identity = load_identity(root)
    segments = list_segments(root / COMMIT_LOG_FOLDER)
    return MessageStore.open(
        root,
        broker=broker,
        cluster=cluster,
        store_host=Host("127.0.0.1", 0),
        segment_size=segments[0][1].stat().st_size if segments else 1 << 30,
        commit_log_paths=commit_log_folders(root, identity)
        if identity and identity.commit_log_folders
        else (),
    )
