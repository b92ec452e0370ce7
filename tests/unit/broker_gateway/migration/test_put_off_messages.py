"""What is put off goes with a store that changes hands: nothing fires twice, nothing is lost."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.migration.exchange import export_to_rocketmq, import_from_rocketmq
from broker_gateway.migration.rocketmq_files import quoted_keys
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.clock import ManualClock
from store.log.record import Host, PendingRecord, Record, encode_properties, tags_code
from store.message_store import MessageStore
from store.opening import StoreOptions

HOST = Host("127.0.0.1", 10911)
NOW_MS = 1_700_000_000_000
TIMERS, LEVELS = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"
HALVES, OPS = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"


class RealStore:
    """As a real broker leaves it. Times in s from `NOW_MS` on."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.looked_s, self.read = 0.0, 0
        self.offsets: dict[str, dict[str, int]] = {}
        self.levels: dict[str, int] = {}
        self.store = self.open()

    def open(self) -> MessageStore:
        return MessageStore.open(
            self.root,
            StoreOptions(
                broker="broker-a",
                cluster="DefaultCluster",
                store_host=HOST,
                segment_size=1 << 20,
                time_ns=lambda: NOW_MS * 1_000_000,
            ),
        )

    def put(self, topic: str, queue_id: int, body: str, properties: Mapping[str, str]) -> None:
        told = {"UNIQ_KEY": body, **properties}
        code = tags_code(told.get("TAGS"))
        record = PendingRecord(
            topic, queue_id, body.encode(), encode_properties(told), NOW_MS, HOST.packed, tags_code=code
        )
        self.store.append([record])

    def timer(self, body: str, due_s: float, **more: str) -> None:
        due = NOW_MS + int(due_s * 1000)
        out = (due - 1) // 1000 * 1000
        told = {"TIMER_DELIVER_MS": str(due), "TIMER_OUT_MS": str(out), "REAL_TOPIC": "t", "REAL_QID": "0"}
        self.put(TIMERS, 0, body, told | more)
        self.read += 1

    def fired(self, body: str, due_s: float) -> None:
        out = (NOW_MS + int(due_s * 1000) - 1) // 1000 * 1000
        self.put("t", 0, body, {"TIMER_OUT_MS": str(out), "TIMER_DEQUEUE_MS": "1"})

    def level(self, body: str, level: int, **more: str) -> None:
        told = {"DELAY": str(level), "REAL_TOPIC": "t", "REAL_QID": "0"}
        self.put(LEVELS, level - 1, body, told | more)

    def half(self, body: str, **more: str) -> None:
        told = {"REAL_TOPIC": "t", "REAL_QID": "0", "TRAN_MSG": "true", "PGROUP": "t"}
        self.put(HALVES, 0, body, told | more)

    def op(self, *offsets: int) -> None:
        self.put(OPS, 0, "".join(f"{each}," for each in offsets), {"TAGS": "d"})

    def close(self) -> None:
        self.store.close()
        config = self.root / "config"
        config.mkdir(exist_ok=True)
        check = struct.pack(">4q", NOW_MS + int(self.looked_s * 1000), 0, self.read, self.read)
        (config / "timercheck").write_bytes(check.ljust(4096, b"\0"))
        table = ",".join(f"{level}:{offset}" for level, offset in self.levels.items())
        (config / "delayOffset.json").write_text(f'{{"offsetTable":{{{table}}}}}')
        (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": self.offsets}))
        (config / "topics.json").write_text(
            '{"topicConfigTable":{"t":{"readQueueNums":1,"writeQueueNums":1}}}'
        )
        (config / "subscriptionGroup.json").write_text('{"subscriptionGroupTable":{"g":{"groupName":"g"}}}')
        (self.root / "lakebroker.json").unlink()


@pytest.fixture
def real(tmp_path: Path) -> Iterator[RealStore]:
    real = RealStore(tmp_path / "store")
    yield real
    real.store.close()


def gateway(root: Path) -> InProcessBroker:
    return InProcessBroker(root.parent, clock=ManualClock(NOW_MS), recallMessageEnable="true")


def arrivals(broker: InProcessBroker, seconds: int) -> list[str]:
    """What stands in the topic once so much time has gone by."""
    before = broker.store.index.max_offset("t", 0)
    broker.jump(seconds)
    broker.advance(1)
    return [bytes(each.body).decode() for each in records(broker.store, "t")[before:]]


def records(store: MessageStore, topic: str, queue_id: int = 0) -> list[Record]:
    offsets, sizes, _ = store.index.entries(topic, queue_id, 0, 100_000)
    return [store.record(int(at), int(size)) for at, size in zip(offsets, sizes, strict=True) if size]


def test_timers_of_a_real_broker(real: RealStore) -> None:
    real.timer("delivered", 10)
    real.fired("delivered", 10)
    real.timer("due at the last look", 15)
    real.timer("later", 20.5)
    real.timer("recalled", 21)
    real.timer("of 5.5.0", 21, TIMER_DEL_UNIQKEY="recalled")
    real.timer("also recalled", 22)
    real.timer("of others", 22, TIMER_DEL_UNIQKEY="t+also recalled")
    real.timer("rolled", 30)
    real.timer("rolled", 30, TIMER_ROLL_TIMES="1")
    real.timer("of pop", 31, REAL_TOPIC="rmq_sys_REVIVE_LOG_DefaultCluster", TAGS="ack")
    real.looked_s = 14
    read = real.read
    real.timer("late and not read yet", 5)
    real.read = read
    real.close()
    taken = import_from_rocketmq(real.root, "broker-a", "DefaultCluster")
    assert (taken.put_off.timers, taken.problems) == (4, [])
    with gateway(real.root) as broker:
        assert broker.broker.parts.timers.count == 4
        assert arrivals(broker, 6) == ["late and not read yet"]
        assert arrivals(broker, 60) == ["due at the last look", "later", "rolled"]
        broker.crash()
        (broker.root / "lakedeferred" / "timers.due").unlink(missing_ok=True)
        broker.crash()
        assert arrivals(broker, 100) == [], (
            "what the real broker delivered is not delivered again without the file"
        )


def test_a_killed_real_broker_did_not_say_that_it_had_looked(real: RealStore) -> None:
    for name in ("1", "2", "3"):
        real.timer(name, 10)
    real.fired("1", 10)
    real.fired("2", 10)
    real.close()
    assert import_from_rocketmq(real.root, "broker-a", "DefaultCluster").put_off.timers == 1
    with gateway(real.root) as broker:
        assert arrivals(broker, 60) == ["3"]


def test_delay_levels_of_a_real_broker(real: RealStore) -> None:
    for name in ("gone", "waits"):
        real.level(name, 3)
    real.level("two hours", 18)
    real.level("retried", 4, REAL_TOPIC="%RETRY%g", RETRY_TOPIC="t")
    real.levels = {"3": 1}
    real.close()
    assert import_from_rocketmq(real.root, "broker-a", "DefaultCluster").put_off.levels == 3
    with gateway(real.root) as broker:
        broker.create_group("g")
        broker.receive("t", "g", wait_ms=0)
        assert arrivals(broker, 8) == []
        assert arrivals(broker, 2) == ["waits"]
        assert arrivals(broker, 7200) == ["two hours"]
        (retried,) = records(broker.store, "%RETRY%g_t")
        assert bytes(retried.body) == b"retried"
        assert b"retried" in [each.body for each in broker.receive("t", "g", wait_ms=0)[1]]


def test_halves_of_a_real_broker(real: RealStore) -> None:
    for number in range(5):
        real.half(f"half-{number}")
    real.op(3)
    real.offsets = {f"{HALVES}@CID_RMQ_SYS_TRANS": {"0": 2}}
    real.close()
    assert import_from_rocketmq(real.root, "broker-a", "DefaultCluster").put_off.halves == 2
    with gateway(real.root) as broker:
        assert broker.broker.parts.transactions.count == 2
        for number, expected in enumerate(
            [pb.INVALID_TRANSACTION_ID] * 2 + [pb.OK, pb.INVALID_TRANSACTION_ID, pb.OK]
        ):
            request = rpc.EndTransactionRequest(
                topic=pb.Resource(name="t"), transaction_id=f"half-{number}", resolution=pb.COMMIT
            )
            assert broker.call("EndTransaction", request).status.code == expected
        assert arrivals(broker, 0) == []
        assert [bytes(each.body) for each in records(broker.store, "t")] == [b"half-2", b"half-4"]


def test_a_half_that_was_copied_by_a_check_is_taken_over_once(real: RealStore) -> None:
    """A broker that is killed behind a check has not said that it read the half: both stand behind its offset."""
    real.half("checked")
    real.half("ended")
    real.half("sent twice")
    real.half("sent twice")
    real.half("checked", TRANSACTION_CHECK_TIMES="1")
    real.half("ended", TRANSACTION_CHECK_TIMES="1")
    real.half("checked", TRANSACTION_CHECK_TIMES="2")
    real.op(5)
    real.close()
    assert import_from_rocketmq(real.root, "broker-a", "DefaultCluster").put_off.halves == 3
    store = real.open()
    try:
        taken = [(bytes(each.body), each.properties_map()) for each in records(store, HALVES)[7:]]
    finally:
        store.close()
    assert [(body, told.get("TRANSACTION_CHECK_TIMES")) for body, told in taken] == [
        (b"sent twice", None),
        (b"sent twice", None),
        (b"checked", "2"),
    ]


@pytest.mark.parametrize(("later_s", "code", "arrived"), [(3599, pb.OK, [b"half"]), (3601, pb.OK, [])])
def test_a_real_brokers_half_keeps_its_own_recovery_time(
    real: RealStore, later_s: int, code: pb.Code, arrived: list[bytes]
) -> None:
    """Each copy that a real broker makes within that time counts as a check there; its producer's own end counts all the same."""
    own = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600", "TRAN_PREPARED_QUEUE_OFFSET": "0"}
    real.half("half", **own)
    real.half("half", **own, TRANSACTION_CHECK_TIMES="1")
    real.close()
    assert import_from_rocketmq(real.root, "broker-a", "DefaultCluster").put_off.halves == 1
    with gateway(real.root) as broker:
        broker.jump(later_s)
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name="t"),
            transaction_id="half",
            resolution=pb.COMMIT,
            source=pb.SOURCE_CLIENT,
        )
        assert broker.call("EndTransaction", request).status.code == code
        broker.advance(1)
        assert [bytes(each.body) for each in records(broker.store, "t")] == arrived


def test_ours_are_handed_back_at_the_end_of_the_log(tmp_path: Path) -> None:
    with InProcessBroker(tmp_path) as broker:
        broker.create_topic("t")
        for name, wait_ms in (("gone", 1000), ("waits", 3_600_000), ("waits longer", 7_200_000)):
            due = timestamp(broker.clock.now_ms + wait_ms)
            broker.send("t", name.encode(), message_type=pb.DELAY, delivery_timestamp=due)
        broker.advance(2)
        ended = broker.send("t", b"ended", message_type=pb.TRANSACTION).entries[0].transaction_id
        broker.send("t", b"pending", message_type=pb.TRANSACTION)
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name="t"), transaction_id=ended, resolution=pb.ROLLBACK
        )
        assert broker.call("EndTransaction", request).status.code == pb.OK
        root = broker.root
        broker.stop()
        (root / "timerwheel").write_bytes(b"old")
        (root / "timerlog").mkdir()
        export_to_rocketmq(root)
        assert not (root / "timerwheel").exists()
        assert not (root / "timerlog").exists()
        _, _, read, master = struct.unpack_from(">4q", (root / "config" / "timercheck").read_bytes())
        offsets = json.loads(quoted_keys((root / "config" / "consumerOffset.json").read_text()))[
            "offsetTable"
        ]
        broker.restart()
        timers = records(broker.store, TIMERS)
        assert master == read
        assert [bytes(each.body) for each in timers[read:]] == [b"waits", b"waits longer"]
        assert [each.properties_map()["REAL_TOPIC"] for each in timers[read:]] == ["t", "t"]
        (half,) = records(broker.store, HALVES)[offsets[f"{HALVES}@CID_RMQ_SYS_TRANS"]["0"] :]
        assert bytes(half.body) == b"pending"
        assert offsets[f"{OPS}@CID_RMQ_SYS_TRANS"]["0"] == 1
        assert broker.broker.parts.timers.count == 2, "and it goes on here as well"
        assert broker.broker.parts.transactions.count == 1
        assert arrivals(broker, 10_000) == ["waits", "waits longer"]


def test_levels_are_handed_back_as_timers(real: RealStore) -> None:
    real.level("two hours", 18)
    real.close()
    import_from_rocketmq(real.root, "broker-a", "DefaultCluster")
    export_to_rocketmq(real.root)
    offsets = json.loads(quoted_keys((real.root / "config" / "delayOffset.json").read_text()))["offsetTable"]
    assert offsets == {"18": 1}
    store = real.open()
    try:
        last = records(store, TIMERS)[-1].properties_map()
    finally:
        store.close()
    assert "DELAY" not in last
    assert last["TIMER_DELIVER_MS"] == str(NOW_MS + 7_200_000)


def test_an_import_that_is_repeated_takes_each_message_once(real: RealStore) -> None:
    real.timer("timer", 20)
    real.level("level", 5)
    real.half("half")
    real.close()
    for _ in range(3):
        taken = import_from_rocketmq(real.root, "broker-a", "DefaultCluster")
        assert taken.put_off.timers + taken.put_off.levels == 2
        assert taken.put_off.halves == 1
    with gateway(real.root) as broker:
        assert broker.broker.parts.timers.count == 2
        assert broker.broker.parts.transactions.count == 1
        assert arrivals(broker, 120) == ["timer", "level"]


def test_what_is_too_large_to_be_copied_is_named(real: RealStore) -> None:
    real.timer("large", 20, x="y" * 32_640)
    real.timer("small", 20)
    real.close()
    taken = import_from_rocketmq(real.root, "broker-a", "DefaultCluster")
    assert taken.put_off.timers == 1
    assert "message 0 of rmq_sys_wheel_timer is not taken over" in taken.problems[0]
