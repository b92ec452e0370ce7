"""A broker without a port, on the test's own event loop and by the real clock: what talks to name servers needs both."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from broker_gateway.app.broker import Broker
from broker_gateway.config.gateway import load_config
from broker_gateway.config.reload import Configuration
from broker_gateway.observability.metrics import Metrics
from lakebroker_testing.logs import open_store


@asynccontextmanager
async def running(folder: Path, **given: str) -> AsyncIterator[Broker]:
    """Its scheduled tasks run; the test starts its registration."""
    options = {"brokerIP1": "127.0.0.1", "storePathRootDir": str(folder), "lakeAutoCreateTopics": "true"}
    config = load_config(None, {**options, **given}, {})[0]
    store = open_store(folder, "broker-a", segment_size=1 << 20)
    broker = Broker(Configuration(config), store, Metrics())
    broker.load()
    broker.schedule()
    try:
        yield broker
    finally:
        await broker.stop()
        store.close()
