"""What the broker says of itself: GET_BROKER_RUNTIME_INFO's table, under the original's names.

The original's queues before its thread pools are the calls of a kind that are under way here, and their capacity; none
of them has waited, since calls are served as they come.
"""

from __future__ import annotations

import shutil

from broker_gateway.api.remoting.administration.call_rates import CallRates, Counts
from broker_gateway.api.remoting.administration.shown_options import ShownOptions
from broker_gateway.config.reload import Configuration
from broker_gateway.messaging.admission import Admission
from broker_gateway.messaging.core import Core
from broker_gateway.observability.broker_statistics import BrokerStatistics
from broker_gateway.observability.dispatch_lag import DispatchLag
from broker_gateway.observability.statistics import Statistics
from broker_gateway.runtime.clock import monotonic_ms, now_ms

_UNITS = "KMGTPE"


class RuntimeInfo:
    """Totals count from the start; what tools show of a day is the difference between
    those of two midnights (`days`)."""

    def __init__(
        self,
        configuration: Configuration,
        options: ShownOptions,
        core: Core,
        statistics: Statistics,
        days: BrokerStatistics,
        admission: Admission,
        dispatch_lag: DispatchLag,
    ) -> None:
        self._configuration = configuration
        self._options = options
        self._admission = admission
        self._dispatch_lag = dispatch_lag
        self._store = core.store
        self._statistics = statistics
        self._metrics = core.metrics
        self._rates = CallRates()
        self._days = days
        self._booted_ms = now_ms()
        config = configuration.current
        self._paths = [
            each.strip() for each in config.store.store_path_commit_log.split(",") if each.strip()
        ] or [str(config.store.store_path_root_dir / "commitlog")]
        self._root = config.store.store_path_root_dir
        self.sample(monotonic_ms())

    def sample(self, at_ms: int) -> None:
        """Takes down what was counted; to be called every 10 s or so."""
        metrics = self._metrics
        metrics.put_times.roll(at_ms)
        self._rates.sample(
            at_ms,
            Counts(metrics.messages_in, metrics.receives_found, metrics.receives_empty, metrics.messages_out),
        )

    def table(self) -> dict[str, str]:
        """Names and values. Raises OSError when a disk cannot be looked at."""
        store, days, totals = self._store, self._days, self._statistics.totals()
        messages, size = totals["messages_in"], totals["bytes_in"]
        times, rates = self._metrics.put_times, self._rates
        used = {path: _used(path) for path in self._paths}
        bulkheads, broker = self._admission, self._configuration.current.broker
        disk = shutil.disk_usage(self._root)
        info = {
            "bootTimestamp": str(self._booted_ms),
            "runtime": format_runtime(now_ms() - self._booted_ms),
            "putMessageTimesTotal": str(messages),
            "putMessageFailedTimes": str(totals["failures"]),
            "putMessageSizeTotal": str(size),
            "putMessageAverageSize": str(size / max(messages, 1)),
            "putMessageEntireTimeMax": str(times.longest_ms),
            "putMessageDistributeTime": times.distribution(),
            "putLatency99": f"{times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{times.percentile_ms(0.999):.2f}",
            "getMessageEntireTimeMax": str(int(self._metrics.longest_look_s * 1000)),
            "putTps": rates.text("put"),
            "getFoundTps": rates.text("found"),
            "getMissTps": rates.text("missed"),
            "getTotalTps": rates.text("found", "missed"),
            "getTransferredTps": rates.text("transferred"),
            "dispatchMaxBuffer": "0",
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
            "dispatchBehindBytes": str(self._dispatch_lag.behind_bytes or 0),
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            "startAcceptSendRequestTimeStamp": str(broker.start_accept_send_request_time_stamp),
            "timerReadBehind": "0",
            "timerOffsetBehind": "0",
            "timerCongestNum": "0",
            "timerEnqueueTps": "0.0",
            "timerDequeueTps": "0.0",
            "remainTransientStoreBufferNumbs": "2147483647",
            "remainHowManyDataToFlush": readable_bytes(store.max_offset - store.flushed_offset),
            "commitLogDirCapacity": f"Total : {readable_bytes(disk.total)}, Free : {readable_bytes(disk.free)}.",
            "EndTransactionQueueSize": str(bulkheads.end_transaction.under_way),
            "EndTransactionThreadPoolQueueCapacity": str(bulkheads.end_transaction.capacity),
        }
        info |= {f"commitLogDiskRatio_{path}": str(ratio) for path, ratio in used.items()}
        for pool, bulkhead in (
            ("send", bulkheads.send),
            ("pull", bulkheads.pull),
            ("query", bulkheads.query),
            ("ack", bulkheads.ack),
        ):
            info |= _pool(pool, bulkhead.under_way, bulkhead.capacity)
        info |= _pool("litePull", 0, int(self._options.table["litePullThreadPoolQueueCapacity"]))
        return info

    def _earliest_ms(self) -> int:
        """Store time of the oldest record; -1 in an empty log."""
        store = self._store
        first = store.index.align(store.min_offset)
        if first is None:
            return -1
        stored_ms = store.first_stored_ms(first)
        return -1 if stored_ms is None else stored_ms


def _pool(name: str, size: int, capacity: int) -> dict[str, str]:
    return {
        f"{name}ThreadPoolQueueSize": str(size),
        f"{name}ThreadPoolQueueCapacity": str(capacity),
        f"{name}ThreadPoolQueueHeadWaitTimeMills": "0",
    }


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
