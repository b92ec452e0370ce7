"""Stores that are made anew from a lake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakebroker_testing.faults import FaultyStore
from lakebroker_testing.logs import HOST
from store.opening import StoreOptions

BATCH_BYTES = 10_000
"""What a lake is made of has several batches."""


@contextmanager
def new_store(folder: Path, broker: str = "broker-a", **options: Any) -> Iterator[FaultyStore]:
    store = FaultyStore.open(
        folder,
        StoreOptions(
            broker=broker, cluster="DefaultCluster", store_host=HOST, segment_size=1 << 20, **options
        ),
    )
    try:
        yield store
    finally:
        store.close()
