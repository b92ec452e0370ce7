"""Stores that are made anew from a lake."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakebroker_testing.faults import FaultyStore
from lakebroker_testing.logs import HOST
from store.opening import StoreOptions
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest


def dispatch(lake: Path, store: Path, parts: int = 3) -> None:
    """All that the log holds goes into the lake, in batches."""
    empty_lake(str(lake))
    ends = sorted(set(cuts(store, parts)))
    for start, end in itertools.pairwise(ends):
        commit(lake, manifest(lake, store, start, end))


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
