"""What the broker says of itself: GET_BROKER_RUNTIME_INFO's table, under the original's names.

Queues of thread pools are the original's; here calls are served as they come, so that their sizes are 0.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from broker_gateway.broker_statistics import BrokerStatistics
from broker_gateway.config import GatewayConfig
from broker_gateway.service.administration.statistics import Statistics
from store.message_store import MessageStore

_POOLS = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
"""Pools and their capacity, in which nothing ever waits."""
_UNITS = "KMGTPE"


class RuntimeInfo:
    """`clock` gives ms since the epoch. Totals count from the start; what tools show of a day is the difference between
    those of two midnights (`days`)."""

    def __init__(
        self,
        config: GatewayConfig,
        store: MessageStore,
        statistics: Statistics,
        days: BrokerStatistics,
        clock: Callable[[], int],
    ) -> None:
        self._store = store
        self._statistics = statistics
        self._days = days
        self._clock = clock
        self._booted_ms = clock()
        self._paths = [
            each.strip() for each in config.store.store_path_commit_log.split(",") if each.strip()
        ] or [str(config.store.store_path_root_dir / "commitlog")]
        self._root = config.store.store_path_root_dir

    def table(self) -> dict[str, str]:
        """Names and values. Raises OSError when a disk cannot be looked at."""
        store, days, totals = self._store, self._days, self._statistics.totals()
        messages, size = totals["messages_in"], totals["bytes_in"]
        put, found = self._statistics.rates("messages_in"), self._statistics.rates("messages_out")
        used = {path: _used(path) for path in self._paths}
        disk = shutil.disk_usage(self._root)
        info = {
            "bootTimestamp": str(self._booted_ms),
            "runtime": format_runtime(self._clock() - self._booted_ms),
            "putMessageTimesTotal": str(messages),
            "putMessageFailedTimes": str(totals["failures"]),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / max(messages, 1)),
            "putTps": f"{put[0]} {put[1]} ",
            "getFoundTps": f"{found[0]} {found[1]} ",
            "getTransferredTps": f"{found[0]} {found[1]} ",
            "commitLogDiskRatio": str(min(used.values())),
            "consumeQueueDiskRatio": str(_used(str(self._root))),
            "commitLogMinOffset": str(store.min_offset),
            "commitLogMaxOffset": str(store.max_offset),
            "brokerActive": "true",
            "brokerVersionDesc": "V5_5_0",
            "msgPutTotalYesterdayMorning": str(days.put_midnight_before),
            "msgPutTotalTodayMorning": str(days.put_midnight),
            "msgPutTotalTodayNow": str(days.put),
            "msgGetTotalYesterdayMorning": str(days.get_midnight_before),
            "msgGetTotalTodayMorning": str(days.get_midnight),
            "msgGetTotalTodayNow": str(days.get),
            "dispatchBehindBytes": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "startAcceptSendRequestTimeStamp": "0",
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "remainTransientStoreBufferNumbs": "2147483647",
            "remainHowManyDataToFlush": readable_bytes(store.max_offset - store.flushed_offset),
            "commitLogDirCapacity": f"Total : {readable_bytes(disk.total)}, Free : {readable_bytes(disk.free)}.",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
        }
        info |= {f"commitLogDiskRatio_{path}": str(ratio) for path, ratio in used.items()}
        for pool, capacity in _POOLS.items():
            info[f"{pool}ThreadPoolQueueSize"] = "0"
            info[f"{pool}ThreadPoolQueueCapacity"] = str(capacity)
            info[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = "0"
        return info

    def _earliest_ms(self) -> int:
        """Store time of the oldest record; -1 in an empty log."""
        store = self._store
        first = store.index.align(store.min_offset)
        if first is None:
            return -1
        size = int.from_bytes(store.read(first, 4), "big")
        return store.record(first, size).store_timestamp


def _used(path: str) -> float:
    usage = shutil.disk_usage(path)
    return round(usage.used / (usage.used + usage.free), 2)


def readable_bytes(count: int) -> str:
    """As Java's tools show sizes: powers of 1024 with one decimal."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}iB"


def format_runtime(passed_ms: int) -> str:
    """A duration in words."""
    seconds = passed_ms // 1000
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds % 60} seconds ]"
