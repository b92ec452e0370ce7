"""The log service beside other calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker_gateway.api.grpc.log import LogService
from broker_gateway.observability.metrics import Metrics
from broker_gateway.transport.context import CallContext
from lakebroker_pb.lakebroker.log.v1 import log_pb2 as pb
from lakebroker_testing.broker import InProcessBroker
from store.log_source import StoreLog


def test_many_splits_at_once_let_others_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = StoreLog.split

    def split(self: StoreLog, *arguments: int) -> Sequence[int]:
        order.append("split")
        return real(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(StoreLog, "split", split)
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.send("t", b"x")
        broker.flush()
        service, store = LogService(StoreLog(broker.store)), broker.store
        request = pb.SplitLogRequest(log_id=store.log_id, end_offset=store.readable_offset, max_bytes=100)
        context = CallContext({}, "127.0.0.1:1", None, ("127.0.0.1", 8081))

        async def together() -> None:
            calls = [asyncio.create_task(service.SplitLog(request, context)) for _ in range(5)]
            while not all(call.done() for call in calls):
                order.append("other")
                await asyncio.sleep(0)

        asyncio.run(together())
    assert order.count("split") == 5
    assert "split split" not in " ".join(order), "one a tick"


def test_bytes_that_readers_are_sent_are_counted() -> None:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.send("t", b"x" * 5000)
        broker.flush()
        metrics, store = Metrics(), broker.store
        service = LogService(StoreLog(store), on_read=metrics.log_read)
        end = store.readable_offset
        request = pb.ReadLogRequest(log_id=store.log_id, end_offset=end)
        context = CallContext({}, "127.0.0.1:1", None, ("127.0.0.1", 8081))

        async def read() -> int:
            return sum([len(answer.data) async for answer in service.ReadLog(request, context)])

        sent = asyncio.run(read()) + asyncio.run(read())
    assert sent == 2 * end > 10_000
    node = {"cluster": "", "node_id": ""}
    assert metrics.registry.get_sample_value("lakebroker_log_bytes_read_total", node) == sent
