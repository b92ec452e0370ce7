"""Handing a store of ours over to a real broker: recovered, closed cleanly, with `config/` as that one reads it."""

from __future__ import annotations

from pathlib import Path

from broker_gateway.clock import now_ms
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.replay import replay
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.metadata.rocketmq_files import write_config
from store.errors import StoreDamagedError
from store.message_store import MessageStore
from store.record import Host
from store.recovery import commit_log_folders, load_identity


def hand_over(root: Path) -> list[Path]:
    """Cuts a torn tail, as a start does, and writes `config/` from the journal; returns what was written.

    Raises StoreLockedError while a broker runs on it, StoreDamagedError, OSError.
    """
    identity = load_identity(root)
    if identity is None:
        raise StoreDamagedError(f"{root} is no store of ours: it has no lakebroker.json")
    folders = commit_log_folders(root, identity)
    store = MessageStore.open(
        root,
        broker=identity.broker,
        cluster=identity.cluster,
        store_host=Host("127.0.0.1", 0),  # nothing is written
        commit_log_paths=folders if identity.commit_log_folders else (),
    )
    try:
        catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
        replay(store, catalog, deliveries)
        return write_config(root, catalog, deliveries.queues(), now_ms())
    finally:
        store.close()
