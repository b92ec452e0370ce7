"""One log, read in every way there is: by its own process, from its folder, over gRPC, and a real broker's by path."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from broker_gateway.api.grpc.log import LogService
from broker_gateway.runtime.tick import Tick
from broker_gateway.transport.http2.server import Http2Server
from lakebroker_pb.lakebroker.log.v1 import log_pb2
from lakebroker_testing.logs import open_store
from store.errors import OffsetOutOfRangeError, OtherLogError, StoreError
from store.log.record import PendingRecord
from store.log_source import FolderLog, LogSource, StoreLog
from store.message_store import MessageStore
from store.running.log import RunningLog
from store.scan import scan
from structured_streaming.errors import SourceError
from structured_streaming.source.access import Access
from structured_streaming.source.logs import open_log
from tests.support.waiting import LIMIT_S

SEGMENT = 1 << 16
COUNT = 300
REFUSED = (StoreError, SourceError)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MessageStore]:
    """A log of several segments, whole on disk."""
    made = open_store(tmp_path_factory.mktemp("log") / "store", segment_size=SEGMENT)
    for number in range(COUNT):
        body = b"%d" % number * (number % 200 + 1)
        made.append(
            [PendingRecord("orders", number % 3, body, b"", 1_700_000_000_000, b"\x7f\0\0\1\0\0\0\1")]
        )
    made.flush()
    yield made
    made.close()


@contextmanager
def served(store: MessageStore) -> Iterator[str]:
    """The log service on a port, by the transport that is the default."""
    loop, address, ready = asyncio.new_event_loop(), "", threading.Event()
    stop = asyncio.Event()

    async def serve() -> None:
        nonlocal address
        server = Http2Server("127.0.0.1", 0, "127.0.0.1", Tick())
        server.bind(
            log_pb2.DESCRIPTOR.services_by_name["LogService"], LogService(StoreLog(store, (1000, 5000)))
        )
        await server.start()
        address = f"127.0.0.1:{server.port}"
        ready.set()
        await stop.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(LIMIT_S)
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(LIMIT_S)
        loop.close()


@contextmanager
def own(store: MessageStore, _: Path) -> Iterator[LogSource]:
    yield StoreLog(store)


@contextmanager
def folder(store: MessageStore, _: Path) -> Iterator[LogSource]:
    yield FolderLog(store.root)


@contextmanager
def target(store: MessageStore, _: Path) -> Iterator[LogSource]:
    yield open_log(f"store:{store.root}", Access())


@contextmanager
def remote(store: MessageStore, _: Path) -> Iterator[LogSource]:
    with served(store) as address:
        yield open_log(f"broker:{address}", Access())


@contextmanager
def real_broker(store: MessageStore, folder: Path) -> Iterator[LogSource]:
    """A folder without anything of ours, as a real broker leaves it: its end is found by walking."""
    shutil.copytree(store.root / "commitlog", folder / "commitlog")
    yield FolderLog(folder, broker=store.broker, log_id=store.log_id)


@contextmanager
def beside_a_broker(store: MessageStore, folder: Path) -> Iterator[LogSource]:
    """The same, as a sidecar reads it; the log has an id of the sidecar's."""
    shutil.copytree(store.root / "commitlog", folder / "store" / "commitlog")
    yield RunningLog(folder / "store", folder / "state", store.broker, store.cluster)


@pytest.fixture(
    params=[own, folder, target, remote, real_broker, beside_a_broker], ids=lambda way: way.__name__
)
def log(request: pytest.FixtureRequest, store: MessageStore, tmp_path: Path) -> Iterator[LogSource]:
    with request.param(store, tmp_path) as found:
        yield found
        found.close()


def pieces(log: LogSource, cuts: list[int], **asked: Any) -> list[tuple[int, bytes]]:
    log_id = log.describe().log_id
    return [
        (offset, bytes(data))
        for begin, end in itertools.pairwise(cuts)
        for offset, data in log.read(log_id, begin, end, **asked)
    ]


def test_it_is_described(log: LogSource, store: MessageStore) -> None:
    state = log.describe()
    own_id = log.log_id if isinstance(log, RunningLog) else store.log_id
    assert (state.broker, state.log_id) == (store.broker, own_id)
    assert (state.start, state.end, state.segment_size) == (0, store.max_offset, SEGMENT)


def test_a_description_waits_no_longer_than_asked(log: LogSource, store: MessageStore) -> None:
    assert log.describe(wait_ms=100, after=store.max_offset).end == store.max_offset


@pytest.mark.parametrize("size", [1, 5000, SEGMENT, 1 << 30])
def test_ranges_hold_every_record_once(log: LogSource, store: MessageStore, size: int) -> None:
    state = log.describe()
    cuts = log.split(state.log_id, state.start, state.end, size)
    assert (cuts[0], cuts[-1]) == (state.start, state.end)
    found: list[int] = []
    for offset, data in pieces(log, cuts):
        columns = scan(data, offset, segment_size=state.segment_size)
        assert not columns.bad_reason
        found += columns.physical_offset.tolist()
    assert len(found) == COUNT
    assert b"".join(data for _, data in pieces(log, cuts)) == b"".join(
        bytes(data) for _, data, _ in store.read_chunks(0, store.max_offset, SEGMENT)
    )


def test_chunks_are_of_the_size_that_is_asked_for(log: LogSource) -> None:
    state = log.describe()
    sizes = [len(data) for _, data in pieces(log, [state.start, state.end], chunk_bytes=4096)]
    assert max(sizes) <= 4096
    assert sum(sizes) == state.end


def test_a_limit_ends_the_ranges(log: LogSource) -> None:
    state = log.describe()
    cuts = log.split(state.log_id, state.start, state.end, 2000, 10_000)
    assert 8000 < cuts[-1] <= 10_000
    assert pieces(log, cuts)[0][0] == state.start


@pytest.mark.parametrize(
    "call",
    [
        lambda log, log_id, end: log.split(log_id, 0, end, 1000),
        lambda log, log_id, end: list(log.read(log_id, 0, end)),
    ],
    ids=["split", "read"],
)
def test_another_log_is_not_taken_for_it(
    log: LogSource, call: Callable[[LogSource, str, int], object]
) -> None:
    with pytest.raises(REFUSED, match="another"):
        call(log, "another", log.describe().end)


def test_what_is_behind_the_end_is_not_read(log: LogSource) -> None:
    state = log.describe()
    with pytest.raises(REFUSED):
        list(log.read(state.log_id, state.end, state.end + 10 * SEGMENT))


def test_a_hint_is_taken(log: LogSource) -> None:
    log.report(log.describe().log_id, 1)


def test_where_nothing_is_erased(log: LogSource) -> None:
    state = log.describe()
    assert state.erased_version == 0
    assert log.erased(state.log_id).tolist() == []
    with pytest.raises(REFUSED, match="another"):
        log.erased("another")


@pytest.mark.parametrize("way", [own, folder, target, remote], ids=lambda way: way.__name__)
def test_erased_records_are_told(
    tmp_path: Path, way: Callable[[MessageStore, Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_gateway.api.grpc.log.MAX_ERASED", 3)  # pages
    with closing(open_store(tmp_path / "store")) as store, way(store, tmp_path) as log:
        versions = [log.describe().erased_version]
        for offsets in ([0, 500, 1000, 1 << 40], [0, 1000], [0, 1001]):
            store.erased.hold(np.array(offsets, np.int64))
            store.publish_erased()
            assert log.erased(store.log_id).tolist() == offsets
            versions.append(log.describe().erased_version)
        assert versions[0] == 0
        assert len(set(versions)) == 4
        log.close()


@pytest.mark.parametrize("way", [own, remote], ids=["own", "remote"])
def test_a_range_within_a_record_is_refused(
    store: MessageStore, tmp_path: Path, way: Callable[[MessageStore, Path], Any]
) -> None:
    with way(store, tmp_path) as log:
        state = log.describe()
        with pytest.raises(
            (OffsetOutOfRangeError, SourceError), match="within a record; give where one begins"
        ):
            list(log.read(state.log_id, 1, state.end))


def test_only_the_process_of_the_store_names_the_log_it_has(store: MessageStore) -> None:
    with pytest.raises(OtherLogError, match=store.log_id):
        StoreLog(store).report("another", 1)
