"""Room on the disks that segments go to: the start's rule for each broker, then what all brokers of a host take together."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from broker_gateway.app.check.finding import Finding, Verdict, as_at_start, fail, ok, warn
from broker_gateway.app.host_checks import Disk, Log, check_disks, disks_of, existing, log_of
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.store_options import StoreOptions
from broker_gateway.runtime.errors import HostError

AHEAD = 2
"""Segments to have room for: the next one is made when the newest is half full."""


def check_room(brokers: Sequence[GatewayConfig]) -> list[Finding]:
    """A finding for each disk, worse ones where brokers share it."""
    sharing: dict[int, list[tuple[GatewayConfig, Disk]]] = defaultdict(list)
    try:
        for each in brokers:
            for disk in disks_of(each):
                sharing[os.stat(existing(disk.folder)).st_dev].append((each, disk))
    except (HostError, OSError) as error:
        return [fail("disk", str(error))]
    found = [_of_one(each) for each in brokers]
    bad = [each for each in found if each.verdict is not Verdict.OK]
    return bad or [_shared(each) for each in sharing.values()]


def _of_one(config: GatewayConfig) -> Finding:
    log = log_of(config)
    return as_at_start(
        "disk", "", lambda: check_disks(disks_of(config), log, config.store.disk_space_warning_level_ratio)
    )


def _shared(sharing: Sequence[tuple[GatewayConfig, Disk]]) -> Finding:
    """Of the brokers that have folders on one disk."""
    (config, disk), *_ = sharing
    logs = {each.broker.broker_name: log_of(each) for each, _ in sharing}
    return check_disk(disk, list(logs.values()), config.store)


def check_disk(disk: Disk, logs: Sequence[Log], options: StoreOptions) -> Finding:
    """A disk that passes the start's rule for each log by itself."""
    size = disk.used + disk.free
    percent = 100 * disk.used / size
    first = sum(log.segment_size for log in logs if not log.segments)
    ahead = first + sum(AHEAD * log.segment_size for log in logs)
    value = f"{disk.free >> 20:,} of {size >> 20:,} MiB are free, {percent:.0f} % used, on the disk of {disk.folder}"
    if first > disk.free or 100 * (disk.used + first) > options.disk_space_warning_level_ratio * size:
        return fail(
            "disk",
            f"{value}, and the first segments of the new brokers take {first >> 20:,} MiB together",
            "make room, take a smaller mappedFileSizeCommitLog, or fewer --processes",
        )
    if percent >= options.disk_max_used_space_ratio:
        return warn(
            "disk",
            f"{value}: above diskMaxUsedSpaceRatio ({options.disk_max_used_space_ratio} %), old segments go at any hour",
            "make room",
        )
    if ahead > disk.free:
        return warn(
            "disk",
            f"{value}; the next {AHEAD} segments of each log take {ahead >> 20:,} MiB",
            "make room, or lower fileReservedTime",
        )
    return ok("disk", value)


def folders_of(config: GatewayConfig) -> list[Path]:
    """Where a broker writes: its store, and where its log is."""
    return [config.store.store_path_root_dir, *config.store.log_folders()]
