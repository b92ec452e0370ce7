"""What the kernel and this process's limits allow: memory, mappings, locks, pages, the clock."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

from broker_gateway.app.check.finding import Finding, ok, warn
from broker_gateway.app.host_checks import GROWTH, Log
from broker_gateway.config.gateway import GatewayConfig
from store.counting import counted
from store.index.checked_pages import MOST_OPEN
from store.log.page_cache import LOCK_REMEDY, LOCKED_SEGMENTS

MAPS_BESIDE = 2000
"""Mappings of the interpreter, its libraries, compiled code and thread stacks; some 900 were seen."""
BASE_MEMORY = 400 << 20
"""Bytes that a broker takes before it has messages; some 300 MB were seen."""
_CAP_IPC_LOCK = 1 << 14
_UNSYNCHRONIZED = 0x40
_EARLIEST_S = 1_700_000_000
"""No clock that is right says less: November 2023."""


def check_pages(found: Log) -> Finding:
    """Segments are mapped, brought in and locked by whole pages."""
    page = mmap.PAGESIZE
    value = f"{page:,} bytes"
    if found.segment_size % page:
        return warn(
            "page size",
            f"{value}; a segment has {found.segment_size:,}, which are not whole pages",
            f"make the store with a mappedFileSizeCommitLog that is a multiple of {page:,}",
        )
    return ok("page size", value)


def check_mappings(allowed: int, found: Log) -> Finding:
    """`allowed` is vm.max_map_count; each segment takes one, and so does each open file of the index."""
    needed = MAPS_BESIDE + MOST_OPEN + found.segments + GROWTH
    value = f"{allowed:,} allowed (vm.max_map_count), some {needed:,} needed with {counted(found.segments, 'segment')}"
    if allowed < needed:
        return warn("mappings", value, f"sysctl -w vm.max_map_count={max(262_144, 2 * needed)}")
    return ok("mappings", value)


def max_map_count() -> int:
    """vm.max_map_count; the kernel's default where it is not told."""
    return _number(Path("/proc/sys/vm/max_map_count")) or 65_530


def check_locks(enabled: bool, allowed: int, may_all: bool, found: Log) -> Finding | None:
    """Of RLIMIT_MEMLOCK, `allowed` in bytes; nothing where no segment is locked. `may_all`: the process has CAP_IPC_LOCK."""
    if not enabled:
        return None
    needed = LOCKED_SEGMENTS * found.segment_size
    if may_all or allowed == resource.RLIM_INFINITY:
        return ok("locked memory", "unlimited")
    value = f"{allowed >> 20:,} MiB allowed (RLIMIT_MEMLOCK), {needed >> 20:,} MiB needed"
    return ok("locked memory", value) if allowed >= needed else warn("locked memory", value, LOCK_REMEDY)


def may_lock_all() -> bool:
    """Whether this process has CAP_IPC_LOCK."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & _CAP_IPC_LOCK)
    return False


class Memory(NamedTuple):
    """Bytes: what is available here, what the control group allows at most (None: no limit), and whether it is counted strictly."""

    available: int
    limit: int | None
    strict: bool


def memory() -> Memory:
    """As the kernel tells it. Raises OSError."""
    available = 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) << 10
    strict = _number(Path("/proc/sys/vm/overcommit_memory")) == 2
    return Memory(available, _group_limit(), strict)


def check_memory(found: Memory, config: GatewayConfig, brokers: int) -> Finding:
    """Room for what the options let the brokers of this host hold; the log itself is page cache."""
    lake = config.lake
    each = BASE_MEMORY + lake.lake_queue_index_max_bytes
    if lake.lake_location:
        each += lake.lake_cold_read_bytes
    needed = each * brokers
    there = found.available if found.limit is None else min(found.available, found.limit)
    value = f"{there >> 20:,} MiB available, up to {needed >> 20:,} MiB needed beside the page cache"
    if there < needed:
        return warn(
            "memory",
            value,
            "give the host or the container more, or lower lakeQueueIndexMaxBytes, lakeColdReadBytes",
        )
    if found.strict:
        return warn(
            "memory",
            f"{value}; vm.overcommit_memory=2 counts reserved memory as used",
            "sysctl -w vm.overcommit_memory=0: thread stacks and compiled code reserve more than they use",
        )
    return ok("memory", value)


def _group_limit() -> int | None:
    """Of this process's control group, version 2."""
    try:
        path = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        text = Path(f"/sys/fs/cgroup{path.rstrip('/')}/memory.max").read_text().strip()
        return int(text)
    except (OSError, ValueError):  # no such group, or "max"
        return None


class _Timex(ctypes.Structure):
    """The begin of the kernel's `struct timex`; the rest is room."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


class Clock(NamedTuple):
    """The time now, s since 1970; whether the kernel calls it synchronized (None: not told, as under a unit with `ProtectClock=`), and
    how far off it is at most, ms."""

    now_s: float
    synchronized: bool | None
    at_most_off_ms: float


def clock() -> Clock:
    """By adjtimex(2), which says the same as `timedatectl`, in containers too."""
    asked = _Timex()
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is None or adjtimex(ctypes.byref(asked)) < 0:
        return Clock(time.time(), None, 0.0)
    return Clock(time.time(), not asked.status & _UNSYNCHRONIZED, asked.maxerror / 1000)


def check_clock(found: Clock, newest_s: float | None) -> Finding:
    """`newest_s`: when the store's log was last changed, s since 1970, None without one."""
    shown = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(found.now_s))
    if found.now_s < _EARLIEST_S:
        return warn("clock", f"{shown} is not now", "set the clock: messages carry it, and delays go by it")
    if newest_s is not None and newest_s > found.now_s + 1:
        return warn(
            "clock",
            f"{shown}; the store's log was changed {newest_s - found.now_s:,.0f} s after that",
            "set the clock: until it has caught up, delayed messages are late and statistics are of other minutes",
        )
    if found.synchronized is None:
        return ok(
            "clock", f"{shown}; whether it is synchronized is not told to this process: timedatectl says"
        )
    if not found.synchronized:
        return warn(
            "clock",
            f"{shown}, not synchronized",
            "run chrony or systemd-timesyncd: store times, delays and lag are compared between hosts",
        )
    return ok("clock", f"{shown}, synchronized, at most {found.at_most_off_ms:,.0f} ms off")


def newest_change(folders: list[Path]) -> float | None:
    """When a file of the log was last changed."""
    times: list[float] = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # retention removes segments meanwhile
                    times.append(entry.stat().st_mtime)
    return max(times, default=None)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
