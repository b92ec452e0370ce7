"""Opens the store as the options have it, and says in the log what the start found in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.runtime.errors import HostError, StartError
from broker_gateway.runtime.service_manager import tell_starting
from store.errors import RecoveryStoppedError, StoreError
from store.log.flush import PAGE_BYTES
from store.log.permissions import Closed
from store.log.record import Host
from store.log.recovery import RecoveryReport, stopped_cleanly
from store.message_store import MessageStore
from store.opening import StoreOptions

log = structlog.get_logger(__name__)
TOLD = 20
"""Damaged places of the log that have a line each, and files of the index."""


def open_store(config: GatewayConfig, stopped: Callable[[], bool]) -> MessageStore:
    """Raises StartError, HostError, or RecoveryStoppedError when `stopped` during the scan."""
    root = config.store.store_path_root_dir
    log.info("recovering the log", folder=str(root))
    try:
        store = _open(config, stopped)
    except RecoveryStoppedError:
        raise
    except StoreError as error:
        raise StartError(str(error)) from error
    except OSError as error:
        raise HostError(
            f"the store {root} cannot be used: {error}; give this user a folder to write to "
            "in storePathRootDir, or mend the disk"
        ) from error
    _tell_segment_size(config, store)
    _tell_recovered(store.recovered, store.max_offset)
    _tell_closed(store.recovered.closed)
    _tell_damage(store.recovered, root)
    return store


def _open(config: GatewayConfig, stopped: Callable[[], bool]) -> MessageStore:
    clean = stopped_cleanly(config.store.store_path_root_dir)

    def progress(done: int, total: int) -> None:
        if stopped():
            raise RecoveryStoppedError(f"stopped at {done} of {total} bytes")
        tell_starting(f"scanning the log: {done >> 20:,} of {total >> 20:,} MiB")
        if done == 0 and not clean:
            log.info(
                "the broker did not stop cleanly; scanning the part of the log that is not indexed",
                mib=total >> 20,
            )
            return
        if total > 1 << 30:
            log.info("scanning the log", done_mib=done >> 20, total_mib=total >> 20)

    broker, options, lake = config.broker, config.store, config.lake
    warm_bytes = options.flush_least_pages_when_warm_maped_file * PAGE_BYTES
    return MessageStore.open(
        options.store_path_root_dir,
        StoreOptions(
            broker=broker.broker_name,
            cluster=broker.broker_cluster_name,
            store_host=Host(broker.broker_ip1, broker.listen_port),
            commit_log_paths=options.log_folders(),
            segment_size=options.mapped_file_size_commit_log,
            flush=options.flush_disk_type,
            flush_interval_ms=options.flush_interval_commit_log,
            flush_least_pages=options.flush_commit_log_least_pages,
            flush_thorough_ms=options.flush_commit_log_thorough_interval,
            prefault_bytes=lake.lake_prefault_bytes,
            warm_bytes=warm_bytes if options.warm_maped_file_enable else 0,
            index_max_bytes=lake.lake_queue_index_max_bytes,
            compiled_code=lake.lake_compiled_code_path,
            progress=progress,
        ),
    )


def _tell_segment_size(config: GatewayConfig, store: MessageStore) -> None:
    options = config.store
    asked = options.mapped_file_size_commit_log
    if asked != store.segment_size and "mapped_file_size_commit_log" in options.model_fields_set:
        log.warning(
            "mappedFileSizeCommitLog counts when a store is made: this one keeps its own",
            given=asked,
            store=store.segment_size,
        )


def _tell_recovered(report: RecoveryReport, end: int) -> None:
    log.info(
        "log recovered",
        records=report.records,
        scanned_mib=report.bytes_scanned >> 20,
        seconds=round(report.seconds, 3),
        clean=report.clean,
        cut_at=report.cut_at,
        end=end,
    )


def _tell_closed(closed: Closed) -> None:
    if (first := closed.first) is not None:
        log.warning(
            "other users could read the store; now they cannot",
            files=closed.changed,
            path=str(first.path),
            mode=f"{first.before:04o}",
            now=f"{first.after:04o}",
        )
    if closed.left:
        log.warning(
            "others can read files of the store, which belong to another user: chmod -R o=,g-w",
            files=len(closed.left),
            first=str(closed.left[0]),
        )


def _tell_damage(report: RecoveryReport, root: Path) -> None:
    for reason in report.unusable[:TOLD]:
        log.warning("a file of the queue index was made anew", file=reason)
    if len(report.unusable) > TOLD:
        log.warning("more files of the queue index were made anew", files=len(report.unusable) - TOLD)
    for offset, length, reason in report.bad[:TOLD]:
        log.error("damage in the log; kept for quarantine", offset=offset, length=length, reason=reason)
    if report.bad:
        log.error(
            "the log is damaged; what else was not read now, `lakebroker store verify` finds",
            places=len(report.bad),
            command=f"lakebroker store verify {root}",
        )
