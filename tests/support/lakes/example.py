"""A small lake that is always the same, and what the queries of docs/tables.md and docs/views.md answer over it.

python -m tests.support.lakes.example      # writes the answers anew, behind each query
"""

from __future__ import annotations

import datetime
import io
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

import pyarrow as pa

from broker_gateway.cli.sql_results import print_rows
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.maintenance.decisions import Decisions
from tests.support.documents.blocks import ROOT, Block, blocks_of, statements_of
from tests.support.lakes.staged import StagedLake
from tests.support.logs.raw import JOURNAL
from tests.support.logs.views import BEGIN_MS, HALF, MINUTE, ViewLog, happened, settled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = tuple(ROOT / "docs" / name for name in ("tables.md", "views.md"))
BATCH_TIME = datetime.datetime.fromtimestamp((BEGIN_MS + 15 * MINUTE) / 1000, datetime.UTC)
"""Shown in place of when the lake was made: its batches' `commit_timestamp`, and the like."""
_LEVELS = (1000, 5000, 10_000)
_WIDTH = 160
_GIVEN_UP = b'{"id": "order-3", "amount": 103}'


def make(folder: Path) -> Path:
    """A lake of two brokers, a batch each: orders that billing consumed, one of them given up; a transaction, a reminder."""
    staged = StagedLake(folder)
    for broker, log in (("broker-a", _orders()), ("broker-b", _shipments())):
        staged.take(log, delay_levels=_LEVELS, broker=broker)
    Decisions(str(folder), _no_session).set_retention("orders=30d,*=1y")
    return folder


def _no_session() -> SparkSession:
    raise AssertionError("a lake in a folder needs none")


def _orders() -> bytes:
    log = ViewLog()
    _configured(log)
    for n in range(10):
        body = b'{"id": "order-%d", "amount": %d}' % (n, 100 + n)
        log.put(
            "orders",
            n * 20_000,
            n % 2,
            body=body,
            UNIQ_KEY=f"A{n:03}",
            KEYS=f"order-{n}",
            TAGS="paid",
            region="north",
        )
    log.journal(
        MINUTE + 15,
        settled(
            "billing", "orders", 1, 1,
            happened(pb.DELIVERED, MINUTE + 3, 1, (0, "A001"), (1, "A003")),
            happened(pb.ACKED, MINUTE + 9, 1, (0, "A001")),
            happened(pb.NACKED, MINUTE + 12, 1, (1, "A003")),
        ),
        settled("billing", "orders", 0, 3),
        settled("audit", "orders", 0, 5),
        settled("billing", "%RETRY%billing_orders", 0, 0),
    )  # fmt: skip
    log.put(
        "%RETRY%billing_orders", 2 * MINUTE, body=_GIVEN_UP, reconsume_times=1, UNIQ_KEY="A003", KEYS="order-3", LB_ORIGIN="1:1:2:7:billingorders",
    )  # fmt: skip
    log.journal(
        3 * MINUTE, settled("billing", "orders", 1, 2, happened(pb.DELIVERED, 2 * MINUTE + 1, 2, (1, "A003")))
    )
    log.put(
        "%DLQ%billing", 3 * MINUTE, body=_GIVEN_UP, reconsume_times=2, UNIQ_KEY="A003", KEYS="order-3",
        LB_ORIGIN="1:1:2:7:billingorders", LB_REASON="no such account",
    )  # fmt: skip
    log.journal(
        3 * MINUTE + 2,
        settled("billing", "orders", 1, None, happened(pb.DEAD_LETTERED, 3 * MINUTE + 1, 2, (1, "A003"))),
    )
    half = log.put(
        HALF, 10, UNIQ_KEY="T000", REAL_TOPIC="payments", REAL_QID="0", TRAN_MSG="true", PGROUP="p"
    )
    log.put(
        "payments",
        20,
        sys_flag=8,
        prepared=half,
        UNIQ_KEY="T000",
        KEYS="payment-0",
        TRAN_MSG="true",
        PGROUP="p",
    )
    due = str(BEGIN_MS + 10 * MINUTE)
    log.put(
        "rmq_sys_wheel_timer", 50, UNIQ_KEY="D000", REAL_TOPIC="reminders", REAL_QID="0", TIMER_DELIVER_MS=due, TIMER_OUT_MS=due,
    )  # fmt: skip
    log.data += b"?" * 200  # what no broker wrote
    log.put(
        "orders",
        4 * MINUTE,
        body=b'{"id": "order-10", "amount": 110}',
        UNIQ_KEY="A010",
        KEYS="order-10",
        TAGS="paid",
    )
    return bytes(log.data)


def _configured(log: ViewLog) -> None:
    """Topics and groups, what a minute's calls took, and an erasure."""
    minute = BEGIN_MS
    batch = pb.Batch(
        version=3,
        timestamp_ms=BEGIN_MS,
        topics=[
            pb.TopicChange(topic=name, read_queues=2, write_queues=2, permission=6, accept_message_types=[kind], created_ms=BEGIN_MS)
            for name, kind in (("orders", "NORMAL"), ("payments", "TRANSACTION"), ("reminders", "DELAY"))
        ],
        groups=[
            pb.GroupChange(group="billing", retry_max_times=1, consume_enabled=True, created_ms=BEGIN_MS),
            pb.GroupChange(group="audit", retry_max_times=16, consume_enabled=True, created_ms=BEGIN_MS, first_used_by="10.0.0.7"),
        ],
        stats=[
            pb.MinuteStats(
                topic="orders", consumer_group=group, minute_ms=minute + at, messages=3, bytes=99, failures=failures,
                latency=pb.LatencySketch(bucket=[0, 40], count=[2, 1]),
            )
            for group, at, failures in (("", 0, 0), ("", MINUTE, 1), ("billing", MINUTE, 0))
        ],
        erasures=[pb.Erasure(broker="broker-a", log_id="log-1", physical_offset=[999_999], requested_ms=BEGIN_MS + MINUTE)],
    )  # fmt: skip
    log.put(JOURNAL, 0, body=batch.SerializeToString(), TAGS="events")


def _shipments() -> bytes:
    log = ViewLog()
    for n in range(2):
        log.put("shipments", n * 90_000, UNIQ_KEY=f"S{n:03}", KEYS=f"order-{n}")
    log.journal(MINUTE, settled("shipping", "shipments", 0, 1))
    return bytes(log.data)


def answer(engine: EmbeddedEngine, block: Block) -> str:
    """What `lakebroker sql` prints for the statements of a block."""
    printed = []
    for statement in statements_of(block):
        table = engine.query(statement).read_all()
        out = io.StringIO()
        with patch.dict("os.environ", COLUMNS=str(_WIDTH)):
            print_rows(
                pa.table([_as_made(c) for c in table.columns], table.schema.names).to_reader(), "table", out
            )
        printed.append("".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines()))
    return "".join(printed)


def _as_made(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times of this run as `BATCH_TIME`."""
    if not pa.types.is_timestamp(column.type):
        return column
    recent = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    values = [
        BATCH_TIME if each is not None and each.astimezone(datetime.UTC) > recent else each
        for each in column.to_pylist()
    ]
    return pa.chunked_array([pa.array(values, column.type)])


def answered(page: Path, engine: EmbeddedEngine) -> str:
    """The page's text with the answers of its queries behind them."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for block in reversed([block for block in blocks_of(page) if block.language == "sql" and block.runs]):
        end = block.line + block.text.count("\n") + 1  # behind the closing fence
        until = end
        if block.answer:
            until = next(n for n in range(end, len(lines)) if lines[n].startswith("```text"))
            until += block.answer.count("\n") + 2
        lines[end:until] = ["", "```text", *answer(engine, block).splitlines(), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="lakebroker-examples-") as folder:
        lake = make(Path(folder) / "lake")
        with EmbeddedEngine.open(str(lake)) as engine:
            for page in PAGES:
                page.write_text(answered(page, engine), encoding="utf-8")


if __name__ == "__main__":
    main()
