"""The longest stretch that one call holds the event loop, where stores are long: `python -m benchmarks.loop_stretch CASE`.

Each case prints a line of JSON: `longest_ms` and `median_ms`, of the calling thread's own processor time, so that other
processes do not count. A case is a function in `CASES`: it makes its store in a folder, and yields the calls to measure.

| case | what |
|---|---|
| lookup | least offset, entries and searches by time of queues that are busy, or seldom used, over 4,000 runs of the index |
| tag-poll | what the event loop runs in one go while a waiting receive, after a reset, looks for a tag in a queue of 10 million entries that have another |
| snapshot | ticks of the journal while it writes a snapshot of 100,000 queue states |
| acks | AckMessage with as many entries as a call takes: parsed, served and encoded; those that are good, and those that are refused |
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from broker_gateway.app.broker import Broker
from broker_gateway.app.startup import tune_collector
from broker_gateway.config.gateway import config_of
from broker_gateway.config.reload import Configuration
from broker_gateway.delivery.in_flight import InFlight
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.broker_journal import BrokerJournal
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from broker_gateway.observability.metrics import Metrics
from broker_gateway.transport.context import CallContext
from broker_gateway.transport.request_limits import limits_of, parser
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import ack_request, receive_request
from store.index.file_run import FileRun
from store.index.live_run import LiveRun
from store.index.queue_index import QueueIndex
from store.index.run_file import Key
from store.index.time_search import BoundaryType
from store.index.write_run import write_run
from store.log.record import Host, tags_code
from store.message_store import MessageStore
from store.opening import StoreOptions

Calls = Iterator[tuple[str, Callable[[], object] | float]]
"""What a call is, to be measured apart from others, and the call, or its ms when it was measured already."""
RUN_BYTES = 256 << 20
BUSY, SELDOM, EVERY = 32, 32, 100
"""Queues with entries in each run, and in one of so many."""
PER_RUN = 8
SEGMENT = str(1 << 22)
HOST = Host("127.0.0.1", 10911)


def lookup(folder: Path, runs: int) -> Calls:
    """Of the queue index alone."""
    index, last = QueueIndex(), runs * PER_RUN
    for run in _files(folder, runs):
        index.load(run)
    chosen = random.Random(1)
    busy = [("busy", number) for number in range(BUSY)]
    rate_limited_log = [("rate_limited_log", number) for number in range(SELDOM)]
    for topic, queue_id in busy + rate_limited_log:
        yield "min_offset", lambda topic=topic, queue_id=queue_id: index.min_offset(topic, queue_id)
    for number in range(500):
        topic, queue_id = chosen.choice(busy)
        start = chosen.randrange(last - 64)
        yield (
            "entries",
            lambda topic=topic, queue_id=queue_id, start=start: index.entries(topic, queue_id, start, 32),
        )
        topic, queue_id = chosen.choice(rate_limited_log)
        start = chosen.randrange(index.max_offset(topic, queue_id) - 1)
        yield (
            "entries",
            lambda topic=topic, queue_id=queue_id, start=start: index.entries(topic, queue_id, start, 1),
        )
        if number % 25 == 0:
            wanted = chosen.randrange(runs * RUN_BYTES)
            search = index.at_time(topic, queue_id, lambda offset, size: offset)
            yield "at_time", lambda search=search, wanted=wanted: search(wanted, BoundaryType.LOWER)


def _files(folder: Path, runs: int) -> Iterator[FileRun]:
    following: dict[Key, int] = {}
    for number in range(runs):
        run = LiveRun(number * RUN_BYTES)
        queues = [("busy", queue) for queue in range(BUSY)]
        queues += [("rate_limited_log", queue) for queue in range(SELDOM) if (number + queue) % EVERY == 0]
        for position in range(PER_RUN):
            for place, key in enumerate(queues):
                at = following.get(key, 0)
                offset = run.start + (position * len(queues) + place) * 1000
                run.entry(key, at, run.put(offset, 1000, 7))
                following[key] = at + 1
        run.end = run.start + RUN_BYTES
        yield write_run(run, folder, "0" * 32, following)


def tag_poll(folder: Path, entries: int) -> Calls:
    """Every callback of the loop is a call, from the reset until the receive is answered."""
    config = config_of(
        {
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": str(folder),
            "mappedFileSizeCommitLog": SEGMENT,
            "grpcClientConsumerMinLongPollingTimeoutMillis": "0",
        }
    )[0]
    store = MessageStore.open(
        folder, StoreOptions(broker="broker-a", cluster="c", store_host=HOST, segment_size=int(SEGMENT))
    )
    spent: list[float] = []

    async def scenario() -> int:
        broker = Broker(Configuration(config), store, Metrics())
        broker.load()
        broker.catalog.put_topic(Topic("sparse", 1, 1))
        broker.catalog.put_group(Group("g"))
        for start in range(0, entries, 1 << 20):
            count = min(1 << 20, entries - start)
            codes = np.full(count, tags_code("other"), dtype=np.int64)
            store.index.put_columns(
                "sparse", 0, start, start * 100, np.full(count, 100, dtype=np.int64), codes
            )
        request = receive_request("sparse", "g", filter="wanted", wait_ms=5_000, invisible_ms=30_000)
        context = CallContext({"x-mq-client-id": "bench"}, "127.0.0.1:1", None, ("127.0.0.1", 8081))
        broker.deliveries.queue(QueueKey("g", "sparse", 0)).reset(entries)
        waiting = asyncio.ensure_future(broker.messaging.ReceiveMessage(request, context))
        while not broker.wakeups.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        with timed_callbacks(spent):
            await broker.administration.offset_changes.reset("g", "sparse", 0, 0, 0)
            answer = await waiting
        first = answer[0]
        status = rpc.ReceiveMessageResponse.FromString(first) if isinstance(first, bytes) else first
        return status.status.code

    try:
        assert asyncio.run(scenario()) == pb.MESSAGE_NOT_FOUND
    finally:
        store.close()
    yield from (("callback", each) for each in spent)


@contextlib.contextmanager
def timed_callbacks(spent: list[float]) -> Iterator[None]:
    """Adds the thread's time of every callback of asyncio's own loop, in ms."""
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time_ns()
        run(handle)
        spent.append((time.thread_time_ns() - began) / 1e6)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


def snapshot(folder: Path, states: int) -> Calls:
    """Of the journal alone, with one message in flight in each state; all of them came behind the start."""
    tune_collector()
    store = MessageStore.open(
        folder, StoreOptions(broker="broker-a", cluster="c", store_host=HOST, segment_size=1 << 28)
    )
    catalog, deliveries = Catalog(), DeliveryTable(lambda topic, queue_id: 0)
    ending: list[Callable[[], None]] = []
    following: list[Callable[[], None]] = []
    pace = SnapshotPace(1 << 62)
    journal = BrokerJournal(store, catalog, deliveries, pace, ending.append, following.append).journal
    for number in range(states):
        state = deliveries.queue(QueueKey(f"group-{number // 8}", "orders", number % 8))
        state.restore(InFlight(5, 1, 1 << 50, number, f"01AC11000200000000{number:014}", "client-1"))
        state.restore_offsets(1000, None)

    def tick() -> None:
        for works in (following, ending):
            some = works.copy()
            works.clear()
            for work in some:
                work()

    journal.begin_snapshot()
    while following:
        yield "tick", tick
    store.close()


def acks(folder: Path, entries: int) -> Calls:
    """Of one group with so many messages in flight."""
    path = "/apache.rocketmq.v2.MessagingService/AckMessage"
    parse = parser(rpc.AckMessageRequest, limits_of(path))
    with InProcessBroker(folder, lakeMaxInFlightPerQueue=str(entries), log_level="critical") as broker:
        broker.create_topic("orders", 4)
        broker.create_group("billing")
        for _ in range(0, entries, 32):
            broker.send("orders", *[b"x"] * 32)
        held: list[pb.Message] = []
        while len(held) < entries:
            held += broker.receive("orders", "billing", invisible_ms=3_600_000)[1]
        good = ack_request("orders", "billing", *held)
        foreign = rpc.AckMessageRequest(group=good.group, topic=good.topic)
        for entry in good.entries:
            foreign.entries.add(message_id=entry.message_id, receipt_handle=entry.message_id)
        context = CallContext({"x-mq-client-id": "bench"}, "127.0.0.1:1", None, ("127.0.0.1", 8081))

        def call(payload: bytes) -> float:
            began = time.thread_time_ns()
            answer = broker.broker.messaging.AckMessage(parse(payload), context)
            answer.when_set(lambda value: value if isinstance(value, bytes) else value.SerializeToString())
            return (time.thread_time_ns() - began) / 1e6

        gc.collect()
        gc.freeze()  # what this case made is no part of a broker
        for name, request in (("good", good), ("void", good), ("foreign", foreign)):
            payload = request.SerializeToString()
            for _ in range(1 if name == "good" else 20):
                yield name, broker.do(lambda payload=payload: call(payload))


CASES: dict[str, Callable[[Path, int], Calls]] = {
    "lookup": lookup,
    "tag-poll": tag_poll,
    "snapshot": snapshot,
    "acks": acks,
}
DEFAULT_SIZE = {"lookup": 4000, "tag-poll": 10_000_000, "snapshot": 100_000, "acks": 4096}
"""Runs of the index, entries of the queue, queue states, entries of a call."""


def measure(calls: Calls) -> dict[str, dict[str, float]]:
    """Milliseconds by kind of call."""
    spent: dict[str, list[float]] = {}
    for name, call in calls:
        if callable(call):
            began = time.thread_time_ns()
            call()
            call = (time.thread_time_ns() - began) / 1e6
        spent.setdefault(name, []).append(call)
    return {
        name: {"longest_ms": round(max(each), 3), "median_ms": round(statistics.median(each), 3)}
        for name, each in spent.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", nargs="*", choices=[*sorted(CASES), "all"], default="all")
    parser.add_argument("--size", type=int, help="other than the case's own")
    options = parser.parse_args()
    for case in sorted(CASES) if "all" in options.case else options.case:
        size = options.size or DEFAULT_SIZE[case]
        with tempfile.TemporaryDirectory(prefix="lakebroker-") as folder:
            found = measure(CASES[case](Path(folder), size))
        longest = max(each["longest_ms"] for each in found.values())
        print(json.dumps({"case": case, "size": size, "longest_ms": longest, "calls": found}), flush=True)


if __name__ == "__main__":
    main()
