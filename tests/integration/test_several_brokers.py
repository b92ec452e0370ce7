"""The data source over several gateways: fair shares of long backlogs, and brokers that fall silent. Without Spark."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import Row

from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import written
from store.log_reader import LogReader
from structured_streaming.batch_commits import BatchCommits
from structured_streaming.commit.delta_commit import DeltaCommitSink
from structured_streaming.commit.report import BatchReport
from structured_streaming.errors import UnreachableError
from structured_streaming.reput_source import ReputDataSource
from structured_streaming.source import log_watch, remote, stream
from structured_streaming.source.access import Access
from structured_streaming.source.data_source import LakebrokerDataSource
from structured_streaming.source.log_range import LogRange
from tests.support.lakes.empty import empty_lake
from tests.support.peers.relay import Relay
from tests.support.waiting import LIMIT_S, wait_until

BATCH = 512 << 10
SEGMENT = 16 << 20


@contextlib.contextmanager
def gateways(folder: Path, *sizes: tuple[int, int]) -> Iterator[list[Gateway]]:
    """Gateways over stores with so many records of so many bytes."""
    with contextlib.ExitStack() as stack:
        started = []
        for number, (count, body) in enumerate(sizes):
            name, place = f"broker-{number}", folder / f"gateway-{number}"
            written(place / "store", name, count, body, segment_size=SEGMENT)
            options = {
                "brokerName": name,
                "brokerClusterName": "c",
                "mappedFileSizeCommitLog": str(SEGMENT),
            }
            started.append(stack.enter_context(Gateway(place, **options)))
        yield started


def reader(*addresses: str, **options: str) -> Any:
    source = (ReputDataSource if "lake" in options else LakebrokerDataSource)(
        {"brokers": ",".join(addresses), **options}
    )
    return source.streamReader(source.schema())


class Reading:
    """Asks a reader for batches as Spark does."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.offset = stream.initialOffset()

    def batch(self) -> list[LogRange]:
        """The partitions of the next batch; empty when nothing is new."""
        latest = self.stream.latestOffset(self.offset, self.stream.getDefaultReadLimit())
        parts = [] if latest == self.offset else list(self.stream.partitions(self.offset, latest))
        self.offset = latest
        return parts

    def manifest(self, parts: list[LogRange]) -> list[dict[str, Any]]:
        return [row for part in parts for batch in self.stream.read(part) for row in batch.to_pylist()]


def first_batch_of(brokers: set[str], begun: Callable[[], Reading]) -> tuple[Reading, list[LogRange]]:
    """A reading whose first batch has parts of all of these, and those parts. A broker that is late, as on a busy machine, rests for
    longer than a batch; then reading begins anew."""

    def found() -> tuple[Reading, list[LogRange]] | None:
        reading = begun()
        parts = reading.batch()
        return (reading, parts) if {part.broker for part in parts} == brokers else None

    return wait_until(found, f"a first batch of {brokers}")


@pytest.mark.timeout(900)
def test_brokers_with_long_backlogs_get_fair_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "PATIENCE_S", LIMIT_S)
    sizes = ((6_600, 900), (6_600, 900), (25, 10_000))  # two of a dozen batches
    with gateways(tmp_path, *sizes) as started:
        reading = Reading(reader(*(each.address for each in started), maxBytesPerTrigger=str(BATCH)))
        found: list[Counter[str]] = []
        keys: set[tuple[str, int]] = set()
        while parts := reading.batch():
            assert sum(part.end - part.start for part in parts) <= BATCH
            found.append(Counter())
            for part in parts:
                for batch in reading.stream.read(part):
                    brokers, offsets = batch["broker"].to_pylist(), batch["physical_offset"].to_pylist()
                    keys.update(zip(brokers, offsets, strict=True))
                    found[-1].update(brokers)
    total = sum(found, Counter())
    assert total == {f"broker-{number}": count for number, (count, _) in enumerate(sizes)}
    assert len(keys) == total.total()
    assert set(found[0]) == set(total)
    assert all({"broker-0", "broker-1"} <= set(each) for each in found[:-2])
    assert all(each["broker-1"] > 0.9 * each["broker-0"] for each in found[:-2])


@pytest.mark.timeout(900)
def test_a_broker_that_falls_silent_delays_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CALL_S", 3.0)
    notes = tmp_path / "notes"
    with (
        gateways(tmp_path, (2000, 1_000), (2000, 1_000)) as (far, near),
        Relay(far.address) as line,
        Relay("", silent=True) as never,
    ):
        addresses = (line.address, never.address, near.address)

        def begun() -> Reading:
            notes.unlink(missing_ok=True)
            return Reading(reader(*addresses, maxBytesPerTrigger=str(100 << 10), notes=str(notes)))

        reading, _ = first_batch_of({"broker-0", "broker-1"}, begun)
        line.silence()
        (near_end,) = (each.readable_offset for each in [LogReader(near.store)])
        batches = 0
        while reading.offset["broker-1"]["offset"] < near_end:
            parts = reading.batch()
            assert batches == 0 or {part.broker for part in parts} <= {"broker-1"}
            batches += bool(parts)
        assert batches >= 19
        said = ""
        while line.address not in said or never.address not in said:  # once their calls have run out
            reading.batch()
            said = notes.read_text() if notes.exists() else ""
        for silent in (line, never):
            assert said.count(silent.address) == 1, said


@pytest.mark.timeout(900)
def test_a_broker_that_is_always_slow_is_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_watch, "SHORTEST_REST_S", 0.1)
    notes = tmp_path / "notes"
    slow_s = 0.6 * log_watch.PATIENCE_S  # there, and back
    with (
        gateways(tmp_path, (30, 10_000), (100, 10_000)) as (far, near),
        Relay(far.address, slow_s=slow_s) as line,
    ):
        reading = Reading(
            reader(near.address, line.address, maxBytesPerTrigger=str(256 << 10), notes=str(notes))
        )
        rows = Counter[str]()
        keys: set[tuple[str, int]] = set()
        while rows["broker-0"] < 30 or rows["broker-1"] < 100:
            for part in reading.batch():
                for batch in reading.stream.read(part):
                    rows.update(batch["broker"].to_pylist())
                    keys.update(
                        zip(batch["broker"].to_pylist(), batch["physical_offset"].to_pylist(), strict=True)
                    )
        assert len(keys) == rows.total() == 130
        assert notes.read_text().count(f"{line.address} does not answer") <= 1, "slow is said once"


@pytest.mark.timeout(900)
def test_a_broker_cut_off_in_mid_batch_delays_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote, "SILENCE_S", LIMIT_S)
    monkeypatch.setattr(log_watch, "SHORTEST_REST_S", 0.1)
    lake, reports = tmp_path / "lake", list[BatchReport]()
    empty_lake(str(lake))
    commits = BatchCommits(DeltaCommitSink(str(lake)), Access(), reports.append)

    def commit(rows: list[dict[str, Any]]) -> None:
        batch: Any = SimpleNamespace(collect=lambda: [Row(**row) for row in rows])
        commits(batch, 0)

    with gateways(tmp_path, (800, 1_000), (800, 1_000)) as (near, far), Relay(far.address) as line:
        options = {"lake": str(lake), "maxBytesPerTrigger": str(400 << 10), "partitionBytes": str(50 << 10)}
        addresses = (near.address, line.address)
        reading, parts = first_batch_of(
            {"broker-0", "broker-1"}, lambda: Reading(reader(*addresses, **options))
        )
        mine = [part for part in parts if part.broker == "broker-1"]
        manifest = reading.manifest([part for part in parts if part is not mine[-1]])
        capfd.readouterr()
        line.silence()
        monkeypatch.setattr(remote, "SILENCE_S", 1.0)
        monkeypatch.setattr(remote, "CALL_S", 3.0)
        source = LakebrokerDataSource({"brokers": line.address})
        with pytest.raises(UnreachableError, match=r"nothing for|DEADLINE"):
            list(source.streamReader(source.schema()).read(mine[-1]))
        commit(manifest + reading.manifest(mine[-1:]))
        assert line.address in capfd.readouterr().err
        assert {broker: end for (_, broker, _), end in reports[-1].ends.items()} == {
            "broker-0": max(part.end for part in parts if part.broker == "broker-0"),
            "broker-1": mine[-1].start,
        }
        ends = {each.broker: each.readable_offset for each in map(LogReader, (near.store, far.store))}
        while progress(reports)["broker-0"] < ends["broker-0"]:
            parts = reading.batch()
            assert {part.broker for part in parts} <= {"broker-0"}
            commit(reading.manifest(parts))
        line.speak()
        while progress(reports)["broker-1"] < ends["broker-1"]:
            commit(reading.manifest(reading.batch()))
        while parts := reading.batch():
            commit(reading.manifest(parts))
        commits.close()
        for each in (near, far):
            each.terminate()
    rows = (
        DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=["broker", "physical_offset"]).to_pylist()
    )
    assert Counter(row["broker"] for row in rows) == {"broker-0": 800, "broker-1": 800}
    assert len({(row["broker"], row["physical_offset"]) for row in rows}) == 1600


def progress(reports: list[BatchReport]) -> dict[str, int]:
    """Up to where each broker's log was committed."""
    return {broker: end for report in reports for (_, broker, _), end in report.ends.items()}
