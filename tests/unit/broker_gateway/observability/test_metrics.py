"""What Prometheus reads, and that the document names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.core import Metric

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.app import gauges as gauges_module
from broker_gateway.app.gauges import gauges
from broker_gateway.observability import metrics as metrics_module
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from tests.support.documents.metrics import documented

NODE = {"cluster", "node_id"}


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.create_group("g")
        yield broker


def counted(metrics: Metrics) -> dict[str, Metric]:
    return {family.name: family for family in metrics.registry.collect()}


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(
        f"{name}_total", {"cluster": "DefaultCluster", "node_id": "broker-a", **labels}
    )


def test_the_document_names_every_metric_with_its_labels(broker: InProcessBroker) -> None:
    broker.send("t", b"x")
    broker.ack("t", "g", *broker.receive("t", "g")[1])
    there = set(counted(broker.broker.core.metrics))
    labels = {}
    for name, _, given, _ in gauges(broker.broker):
        labels[name] = set(given) - NODE
    for name, family in counted(broker.broker.core.metrics).items():
        for sample in family.samples:
            labels[name] = set(sample.labels) - NODE - {"le"}
    source = Path(gauges_module.__file__).read_text() + Path(metrics_module.__file__).read_text()
    sometimes = {
        "rocketmq_storage_dispatch_behind_bytes",
        "lakebroker_dispatch_behind_bytes",
        "lakebroker_dispatch_behind_records",
        "lakebroker_dispatch_behind_seconds",
        "lakebroker_disk_hours_left",
        "lakebroker_lake_read_bytes",
        "lakebroker_lake_reads_waiting",
        "lakebroker_lake_queues_failing",
    }
    assert all(f'"{name}"' in source for name in sometimes)
    found = documented("Of a broker")
    assert set(found) == there | set(labels) | sometimes
    assert {name: found[name] for name in labels} == labels


def test_what_a_topic_and_a_group_did_is_counted(broker: InProcessBroker) -> None:
    metrics = Metrics("DefaultCluster", "broker-a")
    metrics.sent("t", 1, 2, 30, 0.003)
    metrics.received("t", "g", 2, 30)
    metrics.acked("t", "g", 1)
    metrics.dead_lettered("t", "g", 1)
    metrics.send_failed("t")
    assert value(metrics, "rocketmq_messages_in", topic="t") == 2
    assert value(metrics, "rocketmq_throughput_in", topic="t") == 30
    assert value(metrics, "lakebroker_send_failures", topic="t") == 1
    for name, count in (
        ("rocketmq_messages_out", 2),
        ("rocketmq_throughput_out", 30),
        ("lakebroker_messages_acked", 1),
        ("rocketmq_send_to_dlq_messages", 1),
    ):
        assert value(metrics, name, topic="t", consumer_group="g") == count
    buckets = {
        sample.labels["le"]: sample.value
        for sample in counted(metrics)["rocketmq_rpc_latency_send_seconds"].samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["0.002"], buckets["0.005"], buckets["+Inf"]) == (0, 1, 1)


def test_topics_beyond_the_bound_share_a_series(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MAX_SERIES", 2)
    metrics = Metrics("DefaultCluster", "broker-a")
    for number in range(5):
        metrics.sent(f"t{number}", 1, 1, 1, 0.001)
    assert value(metrics, "rocketmq_messages_in", topic="t1") == 1
    assert value(metrics, "rocketmq_messages_in", topic="other") == 3


def gauge(broker: InProcessBroker, name: str) -> float:
    (found,) = [number for each, _, _, number in gauges(broker.broker) if each == name]
    return found


def test_the_age_of_the_oldest_message_in_flight_counts_from_its_first_delivery(
    broker: InProcessBroker,
) -> None:
    broker.send("t", b"stuck")
    assert broker.receive("t", "g", invisible_ms=20_000)[1]
    assert gauge(broker, "lakebroker_oldest_inflight_seconds") == 0
    for _ in range(8):  # each queue gets some
        broker.send("t", b"x")
    broker.advance(30)
    found = broker.receive("t", "g", invisible_ms=60_000)[1]
    assert len(found) == 9
    broker.ack("t", "g", *[each for each in found if each.body != b"stuck"])
    broker.advance(10)
    assert gauge(broker, "lakebroker_oldest_inflight_seconds") == pytest.approx(40, abs=1)
    assert gauge(broker, "rocketmq_consumer_inflight_messages") == 1
    broker.ack("t", "g", *[each for each in found if each.body == b"stuck"])
    assert gauge(broker, "lakebroker_oldest_inflight_seconds") == 0


def test_what_waits_is_counted(broker: InProcessBroker) -> None:
    def counts() -> list[float]:
        names = (
            "rocketmq_timing_messages",
            "lakebroker_timing_bytes",
            "rocketmq_half_messages",
            "lakebroker_half_bytes",
        )
        return [gauge(broker, name) for name in names]

    assert counts() == [0, 0, 0, 0]
    due = timestamp(now_ms() + 5000)
    assert broker.send("t", b"later", message_type=pb.DELAY, delivery_timestamp=due).status.code == pb.OK
    assert broker.send("t", b"half", message_type=pb.TRANSACTION).status.code == pb.OK
    timing, timing_bytes, halves, half_bytes = counts()
    assert (timing, halves) == (1, 1)
    assert min(timing_bytes, half_bytes) > 100
    broker.advance(6)
    assert counts()[:2] == [0, 0]
