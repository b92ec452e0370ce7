"""A broker that lost its disk, or the end of its log, puts off what the lake says waits: each message comes once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.lake.reader import Lake
from broker_gateway.migration.from_lake import start_from_lake
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from store.log.record import PendingRecord, encode_properties
from tests.support.brokers.restored import BATCH_BYTES, new_store
from tests.support.lakes.maintained import reput

HOUR_S = 3600


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def over(old: InProcessBroker, folder: Path, lake: Path) -> InProcessBroker:
    """The broker, started again over another store."""
    old.restart(storePathRootDir=str(folder / "store"), lakeLocation=str(lake))
    return old


def send_later(broker: InProcessBroker, body: str, seconds: float) -> str:
    due = timestamp(broker.clock.now_ms + int(seconds * 1000))
    answer = broker.send("t", body.encode(), message_type=pb.DELAY, delivery_timestamp=due)
    found: str = answer.entries[0].recall_handle
    return found


def half(broker: InProcessBroker, body: str) -> str:
    found: str = broker.send("t", body.encode(), message_type=pb.TRANSACTION).entries[0].transaction_id
    return found


def end(
    broker: InProcessBroker, transaction: str, resolution: pb.TransactionResolution = pb.COMMIT
) -> pb.Code:
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name="t"), transaction_id=transaction, resolution=resolution
    )
    code: pb.Code = broker.call("EndTransaction", request).status.code
    return code


def received(broker: InProcessBroker, seconds: float = 0) -> list[str]:
    """What a group gets once so much time has gone by, sorted."""
    broker.jump(seconds)
    broker.advance(1)
    found: list[str] = []
    for _ in range(5):  # the lake may be read first
        messages = broker.receive("t", "g", wait_ms=0)[1]
        if messages:
            assert broker.ack("t", "g", *messages).status.code == pb.OK
        found += [each.body.decode() for each in messages]
        broker.advance(0.5)
    return sorted(found)


@pytest.fixture
def old(tmp_path: Path, clock: ManualClock) -> Iterator[InProcessBroker]:
    with InProcessBroker(
        tmp_path / "old", clock=clock, brokerName="broker-a", recallMessageEnable="true"
    ) as old:
        old.create_topic("t")
        old.receive("t", "g", wait_ms=0)
        yield old


def busy(old: InProcessBroker) -> dict[str, str]:
    """Of every kind what waits and what is done with; ids of the transactions."""
    send_later(old, "gone", 1)
    send_later(old, "waits", 2 * HOUR_S)
    request = rpc.RecallMessageRequest(
        topic=pb.Resource(name="t"), recall_handle=send_later(old, "recalled", HOUR_S)
    )
    assert old.call("RecallMessage", request).status.code == pb.OK
    level = encode_properties({"UNIQ_KEY": "L", "DELAY": "18", "REAL_TOPIC": "t", "REAL_QID": "0"})
    record = PendingRecord("SCHEDULE_TOPIC_XXXX", 17, b"level", level, 1, b"\x7f\0\0\1\0\0\0\1")
    old.do(lambda: old.store.append([record]))
    ids = {body: half(old, body) for body in ("committed", "rolled back", "pending", "checked")}
    assert end(old, ids["committed"]) == pb.OK
    assert end(old, ids["rolled back"], pb.ROLLBACK) == pb.OK
    assert received(old, 10) == ["committed", "gone"]
    return ids


def halves_due(broker: InProcessBroker) -> list[int]:
    """When producers are asked, ms since the epoch."""
    due: list[int] = broker.broker.parts.transactions.pending.table.columns().due.tolist()
    return due


def test_a_lost_disk(tmp_path: Path, clock: ManualClock, old: InProcessBroker) -> None:
    ids, lake = busy(old), tmp_path / "lake"
    due = halves_due(old)
    old.stop()
    reput(old.root, lake, BATCH_BYTES)
    with new_store(tmp_path / "new" / "store", time_ns=lambda: clock.wall_ns) as store:
        taken = start_from_lake(Lake(str(lake)), store)
        assert taken is not None
        assert taken.put_off == 4
        assert start_from_lake(Lake(str(lake)), store) is None, "once is enough"
    new = over(old, tmp_path / "new", lake)
    assert new.broker.parts.timers.count == 2
    assert new.broker.parts.transactions.count == 2
    assert halves_due(new) == due, "their time goes on"
    assert end(new, ids["pending"]) == pb.OK
    assert end(new, ids["checked"], pb.ROLLBACK) == pb.OK
    assert end(new, ids["committed"]) == pb.INVALID_TRANSACTION_ID
    assert received(new) == ["pending"]
    new.crash()
    assert received(new, 2 * HOUR_S) == ["level", "waits"]
    assert received(new, 2 * HOUR_S) == []


def test_a_start_that_was_broken_off_puts_nothing_off_twice(
    tmp_path: Path, clock: ManualClock, old: InProcessBroker
) -> None:
    busy(old)
    lake = tmp_path / "lake"
    old.stop()
    reput(old.root, lake, BATCH_BYTES)
    with new_store(tmp_path / "new" / "store") as store:
        store.inject("append", OSError("no room"), after=3)
        with pytest.raises(OSError, match="no room"):
            start_from_lake(Lake(str(lake)), store)
    with new_store(tmp_path / "new" / "store") as store:
        taken = start_from_lake(Lake(str(lake)), store)
        assert taken is not None
        assert taken.put_off == 4
    new = over(old, tmp_path / "new", lake)
    assert new.broker.parts.timers.count == 2
    assert received(new, 3 * HOUR_S) == ["level", "waits"]


def test_a_lost_end(tmp_path: Path, clock: ManualClock, old: InProcessBroker) -> None:
    """A timer that stands in the log was delivered in the end that is lost; another one was sent there."""
    lake = tmp_path / "lake"
    send_later(old, "delivered in the end", HOUR_S)
    transaction = half(old, "committed in the end")
    send_later(old, "waits", 2 * HOUR_S)
    old.stop()
    earlier = tmp_path / "earlier"
    shutil.copytree(old.root, earlier)
    old.restart()
    assert end(old, transaction) == pb.OK
    assert received(old, HOUR_S) == ["committed in the end", "delivered in the end"]
    send_later(old, "sent in the end", HOUR_S)
    root = old.root
    old.stop()
    reput(root, lake, BATCH_BYTES)
    shutil.rmtree(root)
    earlier.rename(root)
    new = over(old, tmp_path / "old", lake)
    assert new.broker.parts.timers.count == 2
    assert new.broker.parts.transactions.count == 0
    found = received(new, 3 * HOUR_S)
    assert [each for each in found if each in ("waits", "sent in the end")] == [
        "sent in the end",
        "waits",
    ]
    assert len(found) == len(set(found))


def test_what_a_real_broker_delivered_is_not_put_off_again(
    tmp_path: Path, clock: ManualClock, old: InProcessBroker
) -> None:
    """Its copies do not say where they came from; what was due long ago is done with."""
    due = clock.now_ms - 7200_000
    told = {
        "UNIQ_KEY": "X",
        "REAL_TOPIC": "t",
        "REAL_QID": "0",
        "TIMER_OUT_MS": str(due),
        "TIMER_DELIVER_MS": str(due),
    }
    record = PendingRecord(
        "rmq_sys_wheel_timer", 0, b"theirs", encode_properties(told), 1, b"\x7f\0\0\1\0\0\0\1"
    )
    old.broker.parts.timers.loop.stop()
    old.do(lambda: old.store.append([record]))
    old.stop()
    lake = tmp_path / "lake"
    reput(old.root, lake, BATCH_BYTES)
    with new_store(tmp_path / "new" / "store") as store:
        taken = start_from_lake(Lake(str(lake)), store)
        assert taken is not None
        assert taken.put_off == 0
