"""SQL by the embedded engine over a broker that takes messages, while its log goes into the lake and the lake is maintained."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from store.log_source import FolderLog
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.errors import UnreachableError
from structured_streaming.maintenance.maintain import maintain
from tests.suite.evidence import rounds
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, manifest

pytestmark = pytest.mark.timeout(900)

INSTANTS, COMMITS = rounds(4, 20), rounds(3, 5)
AT_ONCE = """
WITH held AS (
  SELECT topic, queue_id, count(*) AS n, count(DISTINCT queue_offset) AS d, max(queue_offset) AS last,
         max(queue_offset) - min(queue_offset) + 1 AS span
  FROM messages_live WHERE topic = 'orders' GROUP BY ALL
)
SELECT h.*, q.ends FROM held h LEFT JOIN (
  SELECT queue_id, max(queue_offset) AS ends FROM consume_queue WHERE topic = 'orders' GROUP BY ALL
) q ON h.queue_id = q.queue_id
"""


@pytest.mark.parametrize("by", ["broker", "store", "tables"])
def test_at_every_instant_queues_have_no_gap_and_no_repeat(tmp_path: Path, by: str) -> None:
    lake = empty_lake(str(tmp_path / "lake")).path
    with Gateway(tmp_path / "gateway", **OPTIONS) as gateway:
        client, acknowledged, committed, stop = Client(gateway.address), [0], [0], threading.Event()
        rewritten, problems = [0], list[str]()

        def send() -> None:
            while not stop.wait(0.02):
                assert client.send("orders", *[b"x" * 100] * 5).status.code == pb.OK
                acknowledged[0] += 5

        def reput() -> None:
            reached: int | None = None
            while not stop.wait(0.1):
                log = FolderLog(gateway.store)
                state = log.describe()
                log.close()
                start = state.start if reached is None else reached
                if start < state.end:
                    commit(lake, manifest(lake, gateway.store, start, state.end))
                    reached, committed[0] = state.end, committed[0] + 1

        def maintaining() -> None:
            while not stop.wait(0.2):
                for report in maintain(str(lake)):
                    rewritten[0] += report.rewritten_files
                    problems.extend(report.problems)

        assert client.send("orders", b"first").status.code == pb.OK
        source = {"broker": {"brokers": gateway.address}, "store": {"store": str(gateway.store)}}.get(by, {})
        pool = ThreadPoolExecutor(3)
        running = [pool.submit(each) for each in (send, reput, maintaining)]
        try:
            with EmbeddedEngine.open(str(lake), source=source, strict=True) as engine:
                last, instants = 0, 0
                while instants < INSTANTS or committed[0] < COMMITS or not rewritten[0] or not last:
                    assert not any(each.done() for each in running), [each.exception() for each in running]
                    before = acknowledged[0]
                    rows = engine.query(AT_ONCE).read_all().to_pylist()
                    assert all(row["n"] == row["d"] == row["span"] for row in rows), rows
                    assert all(row["last"] == row["ends"] for row in rows), rows
                    found = sum(row["n"] for row in rows)
                    assert found >= last
                    if by == "broker":  # what was answered before the statement began is in it
                        assert found > before
                    last, instants = found, instants + 1
            assert problems == []
        finally:
            stop.set()
            pool.shutdown()
            client.close()


def test_of_a_broker_that_goes_away_there_is_what_the_lake_holds(tmp_path: Path) -> None:
    lake = empty_lake(str(tmp_path / "lake")).path
    statement, told = "SELECT count(*) AS n FROM messages WHERE topic = 'orders'", list[str]()

    def count(engine: EmbeddedEngine) -> Any:
        return engine.query(statement).read_all().to_pylist()[0]["n"]

    with Gateway(tmp_path / "gateway", **OPTIONS) as gateway:
        client = Client(gateway.address)
        assert client.send("orders", *[b"body"] * 4).status.code == pb.OK
        client.close()
        source = {"brokers": gateway.address}
        with (
            EmbeddedEngine.open(str(lake), source=source, tell=told.append) as engine,
            EmbeddedEngine.open(str(lake), source=source, strict=True) as strict,
        ):
            assert (count(engine), count(strict), told) == (4, 4, [])
            gateway.terminate()
            assert count(engine) == 0
            (line,) = told
            assert line.startswith(
                f"no broker at {gateway.address}: connection refused; of it there is only what the lake"
            )
            with pytest.raises(UnreachableError, match="--strict"):
                count(strict)
