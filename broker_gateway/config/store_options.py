"""Options of the log: RocketMQ's MessageStoreConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from broker_gateway.config.options import (
    NeededPath,
    Port,
)
from broker_gateway.config.options import OptionGroup as _Group
from store.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels
from store.log.flush import FlushMode


def _delay_levels(value: str) -> str:
    parse_delay_levels(value)
    return value


DelayLevels = Annotated[str, AfterValidator(_delay_levels)]


class StoreOptions(_Group):
    """Where and how the log is kept."""

    store_path_root_dir: NeededPath = Field(
        default_factory=lambda: Path.home() / "store", description="folder of the store: a store, or empty"
    )
    store_path_commit_log: str = Field(
        "",
        description="folders of the log, separated by commas, used in turn, of one broker alone (with --processes each has "
        "one of its name in them, or in its store what is in storePathRootDir); empty: commitlog in the store",
    )
    mapped_file_size_commit_log: int = Field(
        1 << 30, ge=1 << 20, le=1 << 32, description="bytes of a segment; fixed when the store is made"
    )
    flush_disk_type: FlushMode = Field(
        FlushMode.ASYNC_FLUSH, description="ASYNC_FLUSH or SYNC_FLUSH (the reply waits for the disk)"
    )
    flush_interval_commit_log: int = Field(500, ge=1, le=60_000, description="ms between flushes")
    flush_commit_log_least_pages: int = Field(
        0, ge=0, le=1 << 20, description="pages of 4 KiB to wait for before an interval's flush"
    )
    flush_commit_log_thorough_interval: int = Field(
        10_000, ge=1, le=600_000, description="ms after which fewer pages are flushed too"
    )
    os_page_cache_busy_time_out_mills: int = Field(
        1000, ge=1, le=600_000, description="ms of an append after which sends that waited are refused"
    )
    sync_flush_timeout: int = Field(5000, ge=10, le=600_000, description="ms a send waits for the disk")
    file_reserved_time: int = Field(72, ge=0, le=1_000_000, description="hours that a segment stays")
    delete_when: str = Field(
        "04", pattern=r"^([01]?\d|2[0-3])(;([01]?\d|2[0-3]))*$", description="hours of deletion, 04;16"
    )
    disk_max_used_space_ratio: int = Field(
        75, ge=10, le=95, description="% of the disk: expired segments go at any hour"
    )
    disk_space_clean_forcibly_ratio: int = Field(
        85, ge=30, le=99, description="%: the oldest segments go at once"
    )
    disk_space_warning_level_ratio: int = Field(90, ge=35, le=99, description="%: sends are refused")
    clean_file_forcibly_enable: bool = Field(True, description="delete segments that are not expired")
    delete_file_batch_max: int = Field(10, ge=1, le=1000, description="segments deleted in one look")
    clean_resource_interval: int = Field(10_000, ge=100, le=3_600_000, description="ms between looks")
    warm_maped_file_enable: bool = Field(
        False, description="write new segments out and lock them in memory until the log is behind them"
    )
    flush_least_pages_when_warm_maped_file: int = Field(
        4096, ge=1, le=1 << 20, description="pages of 4 KiB between flushes while a segment is warmed"
    )
    max_message_size: int = Field(4 << 20, ge=1, le=64 << 20, description="bytes of a body")
    message_index_enable: bool = Field(
        True,
        description="find messages by their keys and ids, by reading the local log; false: none is found",
    )
    access_message_in_memory_max_ratio: int = Field(
        40, ge=1, le=100, description="% of memory: a log within it counts as in memory"
    )
    broker_role: Literal["ASYNC_MASTER", "SYNC_MASTER", "SLAVE"] = Field(
        "ASYNC_MASTER", description="ASYNC_MASTER; the others are refused, they are not built yet"
    )
    ha_listen_port: Port = Field(0, description="announced only, replication is not built; 0: listenPort + 1")
    max_lmq_consume_queue_num: int = Field(
        20_000, ge=1, le=10_000_000, description="lite topics; messages of further ones are refused"
    )
    message_delay_level: DelayLevels = Field(
        DEFAULT_DELAY_LEVELS,
        description="durations of the delay levels",
    )
    timer_wheel_enable: bool = Field(
        True, description="take messages with a delivery time, and make the timer's topic at start"
    )
    timer_max_delay_sec: int = Field(
        259_200, ge=1, le=315_360_000, description="s; a delivery time that is further away is refused"
    )

    def log_folders(self) -> list[Path]:
        """The folders that storePathCommitLog names; none where the log is in the store."""
        return [Path(each.strip()) for each in self.store_path_commit_log.split(",") if each.strip()]
