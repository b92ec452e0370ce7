"""A start compares the store with the lake, before anything is served.

Where the lake has more of the store's log than there is, a new log is begun: see `store/log/new_log.py` for the steps. Here
is what the lake and the journal have to do with it. An empty store goes on where the lake ends (`migration/from_lake.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import journal_at_rest
from broker_gateway.lake.ahead import ahead
from broker_gateway.lake.queue_ends import queue_ends
from broker_gateway.lake.reader import Lake, LakeUnreachableError
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.metadata.system_topics import make_system_topics
from broker_gateway.migration.from_lake import put_off_from_lake, start_from_lake, take_lost_end
from broker_gateway.runtime.errors import StartError
from store.errors import StoreError
from store.index.queue_index import QueueIndex
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
QueueEnds = Mapping[tuple[str, int], int]
"""Queue offsets by topic and queue id: those that the next record of each queue gets at least."""


def compare_with_lake(
    config: GatewayConfig, store: MessageStore, is_stopped: Callable[[], bool] = lambda: False
) -> None:
    """Begins a new log where the lake is ahead, and finishes one that a crash left half begun; starts an empty store.

    A lake that cannot be read now is no reason not to start, unless a new log needs it. Raises StartError, LakeReadStoppedError.
    """
    location, ends = config.lake.lake_location, None
    lake = Lake(location, is_stopped) if location else None
    if lake is not None and (wrong := _found_ahead(lake, store)):
        if not config.lake.lake_new_log_when_ahead:
            raise StartError(
                f"{wrong} (lakeLocation={location}, store {store.root}). Restore the newest copy of the store; or set "
                "lakeNewLogWhenAhead=true: a new log is begun, and what was lost is in the lake alone; or give lakeLocation "
                "another, empty lake, to which all that the log still has goes"
            )
        ends = _queue_ends(lake, store, wrong)
        _begin(store, wrong)
    if store.identity.beginning:
        why = f"the log {store.log_id} was begun, but not to its end"
        if lake is None:
            raise StartError(
                f"{why}: its queues go on above what the lake has of them, and no lake is named (store {store.root}); set "
                "lakeLocation as it was"
            )
        if ends is None:
            ends = _queue_ends(lake, store, why)
        _finish(config, lake, store, ends)
    elif lake is not None:
        _start_empty(lake, store)


def _start_empty(lake: Lake, store: MessageStore) -> None:
    restored = start_from_lake(lake, store)
    if restored is not None:
        log.warning(
            "the store was empty: topics, groups and offsets are those of the lake; messages that only the lake has wait there",
            **asdict(restored),
        )


def _found_ahead(lake: Lake, store: MessageStore) -> str:
    try:
        return ahead(lake.written_to(store.broker, store.log_id), store)
    except LakeUnreachableError as error:
        log.warning("whether the lake is ahead of the log is not known: it cannot be read", error=str(error))
        return ""


def _queue_ends(lake: Lake, store: MessageStore, why: str) -> QueueEnds:
    log.info("reading where the queues end in the lake", lake=lake.location)
    try:
        return queue_ends(lake, store.broker)
    except LakeUnreachableError as error:
        raise StartError(
            f"{why}. A new log's queues go on above what the lake has of them, and that cannot be read "
            f"(lakeLocation={lake.location}, store {store.root}): {error}; start again when it can"
        ) from error


def _begin(store: MessageStore, wrong: str) -> None:
    former = store.log_id
    try:
        store.begin_log()
    except (StoreError, OSError) as error:
        raise StartError(f"{wrong}. A new log could not be begun: {error}; start again") from error
    log.warning(
        f"{wrong}. A new log is begun: what stands before it here is still delivered, what was lost is in the lake alone",
        former_log_id=former,
        log_id=store.log_id,
        begins_at=store.own_from,
    )


def _finish(config: GatewayConfig, lake: Lake, store: MessageStore, ends: QueueEnds) -> None:
    """Raises the queues, and writes what a start needs of the journal into the new log."""
    catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
    journaled = journal_at_rest(store, catalog, deliveries)
    journal = journaled.journal
    journal.replay()
    make_system_topics(config, catalog)
    raised = raise_queues(store.index, ends)
    waiting = take_lost_end(lake, store, catalog, deliveries)
    put_off = put_off_from_lake(lake, store, journaled)
    try:
        journal.write_snapshot()
        store.log_begun()
    except (StoreError, OSError) as error:
        raise StartError(
            f"the new log {store.log_id} of the store {store.root} could not be begun: {error}; make room, and start again"
        ) from error
    log.info(
        "queues go on above what the lake has of them",
        queues=raised,
        messages_only_in_the_lake=waiting,
        put_off=put_off,
    )


def raise_queues(index: QueueIndex, ends: QueueEnds) -> int:
    """Makes every queue go on where the lake ends, or above; how many were raised."""
    raised = 0
    for (topic, queue_id), end in ends.items():
        following = index.max_offset(topic, queue_id)
        if end <= following:
            continue
        raised += 1
        if index.min_offset(topic, queue_id) < following:
            index.leave_out(topic, queue_id, following, end)
        else:
            index.raise_next(topic, queue_id, end)
    return raised
