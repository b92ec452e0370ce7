"""Metrics for Prometheus, under RocketMQ 5's names where it has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_SERIES = 10_000
"""Beyond this many, topics and groups share the label value `other`."""


class Metrics:
    """Counters of what the gateway does. Sizes in bytes, times in seconds."""

    def __init__(self, cluster: str = "", broker: str = "") -> None:
        self.registry = CollectorRegistry()
        self._node = (cluster, broker)
        self._children: dict[tuple[Counter | str, ...], Counter] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ["cluster", "node_id", *labels], registry=self.registry)

        self._messages_in = counter("rocketmq_messages_in", "Messages stored", "topic")
        self._bytes_in = counter("rocketmq_throughput_in", "Bytes of bodies stored", "topic")
        self._failures = counter("lakebroker_send_failures", "Calls that stored nothing", "topic")
        self._messages_out = counter("rocketmq_messages_out", "Messages delivered", "topic", "consumer_group")
        self._bytes_out = counter(
            "rocketmq_throughput_out", "Bytes of bodies delivered", "topic", "consumer_group"
        )
        self._acked = counter(
            "lakebroker_messages_acked", "Messages settled by acks", "topic", "consumer_group"
        )
        self._dead = counter(
            "rocketmq_send_to_dlq_messages", "Messages moved to dead letters", "topic", "consumer_group"
        )
        self._latency = Histogram(
            "rocketmq_rpc_latency_send_seconds",
            "Time from request to reply of a send",
            registry=self.registry,
            buckets=(0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5),
        )

    def sent(self, topic: str, messages: int, size: int, seconds: float) -> None:
        self._child(self._messages_in, topic).inc(messages)
        self._child(self._bytes_in, topic).inc(size)
        self._latency.observe(seconds)

    def send_failed(self, topic: str) -> None:
        self._child(self._failures, topic).inc()

    def received(self, topic: str, group: str, messages: int, size: int) -> None:
        self._child(self._messages_out, topic, group).inc(messages)
        self._child(self._bytes_out, topic, group).inc(size)

    def acked(self, topic: str, group: str, messages: int) -> None:
        self._child(self._acked, topic, group).inc(messages)

    def dead_lettered(self, topic: str, group: str, messages: int) -> None:
        self._child(self._dead, topic, group).inc(messages)

    def gauges(self, read: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        """Adds gauges that are read when asked for: (name, help, labels, value)."""
        self.registry.register(_Gauges(read))

    def serve(self, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
        """Opens the metrics endpoint; port 0 takes a free one. Raises OSError."""
        return start_http_server(port, host, registry=self.registry)

    def _child(self, counter: Counter, *labels: str) -> Counter:
        """The counter of a topic, or of a topic and a group; looked up once."""
        key: tuple[Counter | str, ...] = (counter, *labels)
        child = self._children.get(key)
        if child is None:
            if len(self._children) >= MAX_SERIES:
                labels = ("other",) * len(labels)
            child = counter.labels(*self._node, *labels)
            if len(self._children) < MAX_SERIES:
                self._children[key] = child
        return child


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
