"""Stores made by hand for the tests of the data source."""

from __future__ import annotations

from pathlib import Path

from store.message_store import MessageStore
from store.record import Host, PendingRecord, encode_properties

HOST = Host("127.0.0.1", 10911)


def written(folder: Path, broker: str, count: int, body: int = 1000, segment_size: int = 1 << 20) -> Path:
    """A closed store of `broker` with `count` records of `body` bytes each; the n-th begins with n."""
    store = MessageStore.open(folder, broker=broker, cluster="c", store_host=HOST, segment_size=segment_size)
    for first in range(0, count, 100):
        store.append(
            [
                PendingRecord(
                    f"topic-{n % 3}",
                    n % 4,
                    f"{n:08d}".encode().ljust(body, b"."),
                    encode_properties({"UNIQ_KEY": f"{broker}-{n}"}),
                    1_700_000_000_000,
                    HOST.packed,
                )
                for n in range(first, min(first + 100, count))
            ]
        )
    store.close()
    return folder
