"""Metrics for Prometheus, under RocketMQ 5's names where it has them."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from wsgiref.simple_server import WSGIServer
from wsgiref.types import WSGIApplication

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from broker_gateway.observability.call_times import CallTimes
from broker_gateway.observability.metrics_port import serve_registry

MAX_SERIES = 10_000
"""Of one counter; beyond it, topics and groups share the label value `other`."""
_LATENCY_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)


class Metrics:
    """Counters of what the gateway does, plain numbers until somebody asks. Sizes in bytes, times in seconds."""

    def __init__(self, cluster: str = "", broker: str = "") -> None:
        self.registry = CollectorRegistry()
        self.messages_in = 0
        self.messages_out = 0
        self.receives_found = 0
        self.receives_empty = 0
        self.put_times = CallTimes()
        self.longest_look_s = 0.0
        node = {"cluster": cluster, "node_id": broker}
        by_topic, by_group = ("topic",), ("topic", "consumer_group")
        self._counters: list[_Counter] = []
        self._messages_in = self._counter("rocketmq_messages_in", "Messages stored", by_topic)
        self._bytes_in = self._counter("rocketmq_throughput_in", "Bytes of bodies stored", by_topic)
        self._failures = self._counter("lakebroker_send_failures", "Calls that stored nothing", by_topic)
        self._messages_out = self._counter("rocketmq_messages_out", "Messages delivered", by_group)
        self._bytes_out = self._counter("rocketmq_throughput_out", "Bytes of bodies delivered", by_group)
        self._acked = self._counter("lakebroker_messages_acked", "Messages settled by acks", by_group)
        self._dead = self._counter(
            "rocketmq_send_to_dlq_messages", "Messages moved to dead letters", by_group
        )
        self._lake_read = self._counter(
            "lakebroker_lake_messages_read", "Messages read from the lake for consumers", by_topic
        )
        self._lake_unread = self._counter(
            "lakebroker_lake_read_failures", "Readings of messages in the lake that failed", by_topic
        )
        self._log_read = self._counter("lakebroker_log_bytes_read", "Bytes sent to readers of the log", ())
        self._latency = _Histogram(
            "rocketmq_rpc_latency_send_seconds", "Time from request to reply of a send", _LATENCY_S
        )
        self.registry.register(_Counted(node, self._counters, self._latency))
        ProcessCollector(registry=self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> _Counter:
        """A new one, which is exported."""
        self._counters.append(_Counter(name, text, labels))
        return self._counters[-1]

    def sent(self, topic: str, calls: int, messages: int, size: int, seconds: float) -> None:
        """Sends that were answered together: `seconds` is what each of the calls took."""
        self.messages_in += messages
        self._messages_in.add((topic,), messages)
        self._bytes_in.add((topic,), size)
        self._latency.add(seconds, calls)
        self.put_times.add(seconds, calls)

    def send_failed(self, topic: str) -> None:
        self._failures.add((topic,), 1)

    def received(self, topic: str, group: str, messages: int, size: int) -> None:
        self.messages_out += messages
        self.receives_found += 1
        self._messages_out.add((topic, group), messages)
        self._bytes_out.add((topic, group), size)

    def received_nothing(self) -> None:
        self.receives_empty += 1

    def searched(self, seconds: float) -> None:
        """A receive searched for messages; waiting for some does not count."""
        if seconds > self.longest_look_s:
            self.longest_look_s = seconds

    def acked(self, topic: str, group: str, messages: int) -> None:
        self._acked.add((topic, group), messages)

    def dead_lettered(self, topic: str, group: str, messages: int) -> None:
        self._dead.add((topic, group), messages)

    def lake_read(self, topic: str, messages: int) -> None:
        """Messages that only the lake has were read into memory."""
        self._lake_read.add((topic,), messages)

    def lake_read_failed(self, topic: str) -> None:
        self._lake_unread.add((topic,), 1)

    def log_read(self, size: int) -> None:
        """Bytes that a reader of the log was sent."""
        self._log_read.add((), size)

    def counters(self) -> dict[str, Mapping[tuple[str, ...], int]]:
        """What was counted since the start: by topic, or by topic and group."""
        return {
            "messages_in": self._messages_in.values,
            "bytes_in": self._bytes_in.values,
            "failures": self._failures.values,
            "messages_out": self._messages_out.values,
            "bytes_out": self._bytes_out.values,
            "acked": self._acked.values,
        }

    def gauges(self, read: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        """Adds gauges that are read when asked for: (name, help, labels, value)."""
        self.registry.register(_Gauges(read))

    def serve(
        self, host: str, port: int, around: Callable[[WSGIApplication], WSGIApplication]
    ) -> tuple[WSGIServer, threading.Thread]:
        """Opens the metrics endpoint, `around` it what asks who may read them; port 0 takes a free one. Raises OSError."""
        return serve_registry(self.registry, host, port, around)


class _Counter:
    """Numbers by label values; written by the event loop alone."""

    __slots__ = ("labels", "name", "text", "values")

    def __init__(self, name: str, text: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.text = text
        self.labels = labels
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, key: tuple[str, ...], count: int) -> None:
        values = self.values
        if key not in values and len(values) >= MAX_SERIES:
            key = ("other",) * len(key)
        values[key] = values.get(key, 0) + count


class _Histogram:
    """Counts by upper bound in seconds."""

    __slots__ = ("_bounds", "_counts", "_sum", "name", "text")

    def __init__(self, name: str, text: str, bounds: tuple[float, ...]) -> None:
        self.name = name
        self.text = text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def buckets(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative counts by bound, and the sum."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, itertools.accumulate(self._counts), strict=True)), self._sum


class _Counted(Collector):
    def __init__(self, node: dict[str, str], counters: list[_Counter], latency: _Histogram) -> None:
        self._node = node
        self._counters = counters
        self._latency = latency

    def collect(self) -> Iterable[Metric]:
        for counter in self._counters:
            family = CounterMetricFamily(counter.name, counter.text, labels=[*self._node, *counter.labels])
            for key, value in list(counter.values.items()):
                family.add_metric([*self._node.values(), *key], value)
            yield family
        histogram = HistogramMetricFamily(self._latency.name, self._latency.text)
        buckets, total = self._latency.buckets()
        histogram.add_metric([], buckets, total)
        yield histogram


class _Gauges(Collector):
    def __init__(self, read: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for name, text, labels, value in self._read():
            family = families.get(name)
            if family is None:
                family = families[name] = GaugeMetricFamily(name, text, labels=list(labels))
            family.add_metric(list(labels.values()), value)
        yield from families.values()
