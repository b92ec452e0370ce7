"""What metrics read of a broker when they are asked."""

from __future__ import annotations

from collections.abc import Iterable

from broker_gateway.app.broker import Broker
from broker_gateway.observability.metrics import MAX_SERIES
from broker_gateway.runtime.clock import now_ms

Gauge = tuple[str, str, dict[str, str], float]
"""Name, help, labels, value."""


def gauges(broker: Broker) -> Iterable[Gauge]:
    """All of them. Called on the metrics thread."""
    store = broker.core.store
    node = {"cluster": store.cluster, "node_id": store.broker}
    yield from _of_store(broker, node)
    yield from _of_work(broker, node)
    yield from _of_messages(broker, node)


def _of_store(broker: Broker, node: dict[str, str]) -> Iterable[Gauge]:
    store = broker.core.store
    yield "rocketmq_storage_size", "Bytes of the local log", node, store.max_offset - store.min_offset
    behind = store.max_offset - store.flushed_offset
    yield "rocketmq_storage_flush_behind_bytes", "Bytes not yet on disk", node, behind
    damaged, runs = broker.self_check.damaged, broker.self_check.runs
    yield "lakebroker_store_damaged_places", "Found by the last self-check", node, damaged
    yield "lakebroker_store_self_checks", "Checks for damage since the start", node, runs
    yield "rocketmq_consumer_connections", "Clients known", node, len(broker.clients)
    yield "lakebroker_waiting_receives", "Receives that wait for a message", node, broker.wakeups.waiting
    late = broker.load_report.late_s
    yield "lakebroker_event_loop_late_seconds", "What calls waited at the last water mark", node, late
    old = broker.parts.old_messages
    if old is not None:
        yield "lakebroker_lake_read_bytes", "Messages read from the lake, in memory", node, old.bytes
        yield "lakebroker_lake_reads_waiting", "Readings in line or under way", node, old.waiting
        yield "lakebroker_lake_queues_failing", "Queues whose last reading failed", node, old.failing
    lag = broker.dispatch_lag
    if lag.behind_bytes is not None:
        for name in ("rocketmq_storage_dispatch_behind_bytes", "lakebroker_dispatch_behind_bytes"):
            yield name, "Of the log, not in the lake yet", node, lag.behind_bytes
        records = lag.behind_records
        yield "lakebroker_dispatch_behind_records", "Records not in the lake yet", node, records
        yield "lakebroker_dispatch_behind_seconds", "Since the oldest of them was stored", node, lag.behind_s
    if lag.hours_left is not None:
        text = "Hours until sends are refused, if nothing is deleted"
        yield "lakebroker_disk_hours_left", text, node, lag.hours_left


def _of_work(broker: Broker, node: dict[str, str]) -> Iterable[Gauge]:
    for bulkhead in broker.admission.bulkheads():
        labels = {**node, "kind": bulkhead.name}
        yield "lakebroker_calls_under_way", "Calls without an answer", labels, bulkhead.under_way
        yield "lakebroker_calls_refused", "Calls refused as too many or too late", labels, bulkhead.refused
    for task in broker.tasks.all():
        labels = {**node, "task": task.name}
        yield "lakebroker_task_last_run_seconds", "End of the last run", labels, task.last_ms / 1000
        yield "lakebroker_task_duration_seconds", "Time of the last run", labels, task.took_s
        yield "lakebroker_task_failures", "Runs that failed", labels, task.failures


def _of_messages(broker: Broker, node: dict[str, str]) -> Iterable[Gauge]:
    store = broker.core.store
    stats, old = broker.statistics, broker.parts.old_messages
    for name, put, got in (
        ("today", stats.put_today, stats.get_today),
        ("yesterday", stats.put_yesterday, stats.get_yesterday),
    ):
        yield f"lakebroker_messages_stored_{name}", f"Messages stored {name}", node, put
        yield f"lakebroker_messages_delivered_{name}", f"Messages delivered {name}", node, got
    timers, transactions = broker.parts.timers, broker.parts.transactions
    yield "rocketmq_timing_messages", "Messages that wait for their time", node, timers.count
    yield "lakebroker_timing_bytes", "Of their records", node, timers.bytes
    yield "rocketmq_half_messages", "Halves of transactions that are pending", node, transactions.count
    yield "lakebroker_half_bytes", "Of their records", node, transactions.bytes
    lags: dict[tuple[str, str], list[int]] = {}
    oldest: dict[tuple[str, str], int] = {}
    now = now_ms()
    for state in list(broker.deliveries.queues()):
        group, topic, queue_id = state.key
        sums = lags.setdefault((topic, group), [0, 0, 0])
        if old is not None and state.reads_absences:
            sums[0] += store.index.max_offset(topic, queue_id) - state.position
        else:
            sums[0] += store.index.count_from(topic, queue_id, state.position)
        sums[0] += len(state.in_flight)
        sums[1] += len(state.in_flight)
        sums[2] += state.lake_only.count
        first = state.oldest
        if first is not None and first.first_delivered_ms:
            since = oldest.get((topic, group), now)
            oldest[topic, group] = min(since, first.first_delivered_ms)
    for (topic, group), (behind, flying, in_lake) in list(lags.items())[:MAX_SERIES]:
        labels = {**node, "topic": topic, "consumer_group": group}
        yield "rocketmq_consumer_lag_messages", "Messages not settled", labels, behind + in_lake
        yield "rocketmq_consumer_inflight_messages", "Messages in flight", labels, flying
        age = (now - oldest.get((topic, group), now)) / 1000
        yield "lakebroker_oldest_inflight_seconds", "Since its first delivery", labels, age
        yield "lakebroker_lake_only_messages", "Messages not settled that only the lake has", labels, in_lake
