"""Metrics for Prometheus, under RocketMQ 5's names where it has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

MAX_SERIES = 10_000
"""Topics and groups beyond this many share the label value `other`."""


class Metrics:
    """Counters of what the gateway does. Sizes in bytes, times in seconds."""

    def __init__(self, cluster: str = "", broker: str = "") -> None:
        self.registry = CollectorRegistry()
        self._node = {"cluster": cluster, "node_id": broker}
        self._seen: set[str] = set()

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
        topic = self._label(topic)
        self._messages_in.labels(**self._node, topic=topic).inc(messages)
        self._bytes_in.labels(**self._node, topic=topic).inc(size)
        self._latency.observe(seconds)

    def send_failed(self, topic: str) -> None:
        self._failures.labels(**self._node, topic=self._label(topic)).inc()

    def received(self, topic: str, group: str, messages: int, size: int) -> None:
        labels = {**self._node, "topic": self._label(topic), "consumer_group": self._label(group)}
        self._messages_out.labels(**labels).inc(messages)
        self._bytes_out.labels(**labels).inc(size)

    def acked(self, topic: str, group: str, messages: int) -> None:
        self._acked.labels(**self._node, topic=self._label(topic), consumer_group=self._label(group)).inc(
            messages
        )

    def dead_lettered(self, topic: str, group: str, messages: int) -> None:
        self._dead.labels(**self._node, topic=self._label(topic), consumer_group=self._label(group)).inc(
            messages
        )

    def gauges(self, read: Callable[[], Iterable[tuple[str, str, dict[str, str], float]]]) -> None:
        """Adds gauges that are read when asked for: (name, help, labels, value)."""
        self.registry.register(_Gauges(read))

    def serve(self, host: str, port: int) -> tuple[WSGIServer, threading.Thread]:
        """Opens the metrics endpoint; port 0 takes a free one. Raises OSError."""
        return start_http_server(port, host, registry=self.registry)

    def _label(self, value: str) -> str:
        if value in self._seen:
            return value
        if len(self._seen) >= MAX_SERIES:
            return "other"
        self._seen.add(value)
        return value


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
