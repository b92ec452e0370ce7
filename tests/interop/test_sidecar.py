"""A sidecar beside the real RocketMQ 5.5.0: under load, killed, rolling and deleting; the lake is that of the log.

Without Spark, which reads a sidecar in test_sidecar_hosts.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from broker_gateway.protocol.codes import RequestCode
from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.real_rocketmq import RocketMQ
from store.log_reader import LogReader
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.source.access import Access
from structured_streaming.source.remote import BrokerLog
from structured_streaming.tables import DATA_TABLES
from tests.suite.evidence import EVIDENCE
from tests.support.brokers.sidecar import Sidecar
from tests.support.lakes.checks import assert_exact, rows
from tests.support.rocketmq.requests import done
from tests.support.waiting import wait_until

COUNT, DEAD, LATER = (5_000, 40, 500) if EVIDENCE else (1_200, 10, 100)
SEGMENT = 1 << 19 if EVIDENCE else 1 << 17
GONE = 3
"""Segments that are deleted."""
BATCH = 1 << 16
"""Bytes of the log that make a batch under load, or what came within a second."""
LOAD = Path(__file__).with_name("Load.java")
PASSING = ("found_timestamp",)
"""Columns that tell when the reput met something."""


class Load:
    """The load program on a thread. With `away` it goes on until the broker has ended, a file was made there, and a
    send that failed has removed the file."""

    def __init__(self, broker: RocketMQ, count: int, dead: int, away: Path | None = None) -> None:
        self._failed: list[BaseException] = []
        arguments = [broker.name_server, "load", "readers", str(count), str(dead)]
        if away is not None:
            arguments.append(str(away))

        def run() -> None:
            try:
                assert broker.java(LOAD, *arguments, timeout_s=300).strip().endswith("done")
            except BaseException as error:
                self._failed.append(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def runs(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()
        if self._failed:
            raise self._failed[0]


@pytest.mark.timeout(2400)
def test_the_lake_of_a_real_broker_that_goes_on(tmp_path: Path) -> None:
    broker = RocketMQ(
        tmp_path / "peer",
        {"load": (8, "NORMAL")},
        ["readers"],
        proxy=False,
        heap="640m",
        mappedFileSizeCommitLog=str(SEGMENT),
        autoCreateSubscriptionGroup="true",
    )
    lake = tmp_path / "lake"
    with (
        broker,
        Sidecar(tmp_path, broker.store, f"--config={tmp_path / 'peer/broker.conf'}", broker="") as sidecar,
    ):
        filled = sidecar.filling(lake)
        away = tmp_path / "away"
        load = Load(broker, COUNT, DEAD, away)
        log = BrokerLog(sidecar.address, Access())
        ends = [log.describe().end]
        killed = False
        while load.runs:
            ends.append(log.describe(1000, ends[-1] + BATCH).end)
            filled.reach(ends[-1])
            if not killed and ends[-1] > SEGMENT:
                broker.kill()
                killed = True
                away.touch()
                wait_until(lambda: not away.exists(), "a send to the broker that was killed")
                broker.start()
        load.join()
        assert killed
        assert ends == sorted(ends)
        broker.terminate()

        reader = LogReader(broker.store, broker="broker-a", log_id=sidecar.log_id)
        end = reader.readable_offset
        assert len(reader.segments()) > 5, "it rolled"
        filled.reach(end)
        counts = assert_exact(lake, reader)
        assert counts["messages"] == inspected(broker.store)
        messages = rows(lake, "messages").to_pylist()
        sent = [key for row in messages if row["topic"] == "load" for key in row["keys"]]
        assert set(sent) == {f"k{number}" for number in range(COUNT)}
        assert_dead_letters(messages)
        assert_dead_letters_in_sql(lake, messages)

        rebuilt = tmp_path / "rebuilt"
        sidecar.filling(rebuilt).reach(end)
        for table in DATA_TABLES:
            assert in_order(rebuilt, table) == in_order(lake, table), table.name

        if EVIDENCE:
            broker.start()
            begin = delete_by_retention(broker)
        else:  # a broker's retention looks for the first time when it has run for a minute
            begin = delete_oldest(broker)
            broker.start()
        Load(broker, LATER, 0).join()
        after = log.describe()
        assert after.start == begin
        filled.reach(after.end)
        assert rows(lake, "quarantine").num_rows == 0, "the lake had what was deleted"
        log.close()
        assert sidecar.terminate() == 0


def inspected(store: Path) -> int:
    """Records that `lakebroker store inspect` counts."""
    done = subprocess.run(
        command("store", "inspect", str(store), "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(json.loads(done.stdout)["records"])


def assert_dead_letters(messages: list[dict[str, Any]]) -> None:
    """Each came from its topic and group; a message that was given back twice is there twice."""
    dead = [row for row in messages if row["topic"] == "%DLQ%readers"]
    assert {key for row in dead for key in row["keys"]} == {f"k{number}" for number in range(DEAD)}
    assert {(row["origin"]["topic"], row["origin"]["consumer_group"]) for row in dead} == {
        ("load", "readers")
    }


def assert_dead_letters_in_sql(lake: Path, messages: list[dict[str, Any]]) -> None:
    """The view has all of them, each with the message it was."""
    sent = {row["physical_offset"]: row for row in messages if row["topic"] == "load"}
    with EmbeddedEngine.open(str(lake), Limits(memory_bytes=256 << 20, seconds=0)) as engine:
        found = engine.query("SELECT * FROM dead_letters").read_all().to_pylist()
    assert len(found) == sum(row["topic"] == "%DLQ%readers" for row in messages)
    assert {key for row in found for key in row["keys"]} == {f"k{number}" for number in range(DEAD)}
    for row in found:
        assert (row["consumer_group"], row["topic"]) == ("readers", "load")
        assert (row["queue_id"], row["queue_offset"], row["reason"]) == (None, None, None)
        assert row["attempts"] >= 1
        if row["origin_message_id"] != row["message_id"]:
            before = sent[int(row["origin_message_id"][-16:], 16)]
            assert (before["keys"], before["message_id"]) == (row["keys"], row["message_id"])


def in_order(lake: Path, table: Any) -> list[dict[str, Any]]:
    found = rows(lake, table.name).drop_columns([name for name in PASSING if name in table.schema.names])
    return sorted(found.to_pylist(), key=lambda row: [str(row[name]) for name in table.key])


def delete_oldest(broker: RocketMQ) -> int:
    """Removes segments, as the broker's retention does; returns where the log begins then."""
    for path in oldest(broker):
        path.unlink()
    return begin_of(broker)


def delete_by_retention(broker: RocketMQ) -> int:
    """Has the broker remove them itself."""
    for path in oldest(broker):
        os.utime(path, (0, 0))
    done(broker.broker_address, RequestCode.DELETE_EXPIRED_COMMITLOG)
    wait_until(
        lambda: begin_of(broker) >= GONE * SEGMENT, lambda: f"the log begins at {begin_of(broker)}: its end"
    )
    return begin_of(broker)


def oldest(broker: RocketMQ) -> list[Path]:
    return sorted((broker.store / "commitlog").iterdir())[:GONE]


def begin_of(broker: RocketMQ) -> int:
    return int(min(path.name for path in (broker.store / "commitlog").iterdir()))
