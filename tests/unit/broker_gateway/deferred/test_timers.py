"""Messages with a delivery time: on time, once, whatever happens to the broker meanwhile."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from zlib_ng import zlib_ng

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.deferred import pending as pending_module
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message
from store.log.record import PendingRecord, Record, encode_properties
from tests.suite.evidence import rounds

HOUR_MS = 3_600_000
CONFLICT = pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker(recallMessageEnable="true") as broker:
        broker.create_topic("t")
        broker.receive("t", "g")
        yield broker


def send_later(
    broker: InProcessBroker, body: bytes, wait_ms: int, **system: object
) -> rpc.SendMessageResponse:
    due = timestamp(broker.clock.now_ms + wait_ms)
    answer: rpc.SendMessageResponse = broker.send(
        "t", body, message_type=pb.DELAY, delivery_timestamp=due, **system
    )
    return answer


def bodies(broker: InProcessBroker, topic: str = "t") -> list[bytes]:
    """Received and acknowledged; nothing waits."""
    found = broker.receive(topic, "g", wait_ms=0)[1]
    if found:
        assert broker.ack(topic, "g", *found).status.code == pb.OK
    return [each.body for each in found]


def recall(broker: InProcessBroker, handle: str, topic: str = "t") -> rpc.RecallMessageResponse:
    request = rpc.RecallMessageRequest(topic=pb.Resource(name=topic), recall_handle=handle)
    answer: rpc.RecallMessageResponse = broker.call("RecallMessage", request)
    return answer


def records(broker: InProcessBroker, topic: str) -> list[Record]:
    least = broker.store.index.min_offset(topic, 0)
    offsets, sizes, _ = broker.store.index.entries(topic, 0, least, 1000)
    return [broker.store.record(int(at), int(size)) for at, size in zip(offsets, sizes, strict=True)]


def test_it_is_received_when_it_is_due_with_all_that_was_sent(broker: InProcessBroker) -> None:
    due = broker.clock.now_ms + 5000
    answer = send_later(broker, b"later", 5000, tag="red", keys=["k"])
    assert answer.status.code == pb.OK
    assert broker.broker.parts.timers.count == 1
    waiting = broker.begin_receive("t", "g", wait_ms=60_000)
    broker.advance(4.998)
    assert not waiting.done
    broker.advance(0.003)
    (received,) = waiting.messages
    system = received.system_properties
    assert (received.body, system.tag, list(system.keys)) == (b"later", "red", ["k"])
    assert system.message_type == pb.DELAY
    assert system.delivery_timestamp.ToMilliseconds() == due
    assert system.message_id == answer.entries[0].message_id
    assert not received.user_properties
    assert broker.broker.parts.timers.count == 0


def test_its_records_are_the_originals(broker: InProcessBroker) -> None:
    now = broker.clock.now_ms
    send_later(broker, b"later", 5000 - now % 1000)
    (timer,) = records(broker, "rmq_sys_wheel_timer")
    properties = timer.properties_map()
    due = now + 5000 - now % 1000
    assert properties["TIMER_DELIVER_MS"] == str(due)
    assert properties["TIMER_OUT_MS"] == str(due - 1000), "an exact multiple of a second goes down by one"
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("t", "0")
    broker.advance(6)
    (delivered,) = records(broker, "t")
    assert delivered.properties_map()["TIMER_ENQUEUE_MS"] == str(timer.store_timestamp)
    assert delivered.properties_map()["LB_ORIGIN"] == "0:0:0:0:rmq_sys_wheel_timer"


def test_times_that_are_past_go_at_once(broker: InProcessBroker) -> None:
    for wait_ms in (0, -1, -86_400_000 * 365):
        answer = send_later(broker, b"now", wait_ms)
        assert answer.status.code == pb.OK
        assert answer.entries[0].recall_handle == ""
        assert bodies(broker) == [b"now"]


def test_they_go_by_their_times_and_not_as_they_were_sent(broker: InProcessBroker) -> None:
    for wait_ms in (3000, 1000, 2000, 1001):
        send_later(broker, str(wait_ms).encode(), wait_ms)
    broker.advance(5)
    assert bodies(broker) == [b"1000", b"1001", b"2000", b"3000"]


def test_thousands_at_one_instant_go_in_several_ticks(broker: InProcessBroker) -> None:
    due = timestamp(broker.clock.now_ms + 1000)
    for _ in range(10):
        sent = [message("t", b"x", message_type=pb.DELAY, delivery_timestamp=due) for _ in range(100)]
        assert broker.call("SendMessage", rpc.SendMessageRequest(messages=sent)).status.code == pb.OK
    broker.advance(1.1)
    assert broker.store.index.max_offset("t", 0) == 1000


def test_large_ones_at_one_instant_are_a_bounded_append_each(broker: InProcessBroker) -> None:
    for _ in range(60):
        send_later(broker, b"x" * 250_000, 1000)
    appends = []
    appended = broker.store.append
    broker.store.append = lambda some: appends.append(sum(len(r.body) for r in some)) or appended(some)  # type: ignore[method-assign, func-returns-value]
    broker.advance(1.1)
    assert broker.store.index.max_offset("t", 0) == 60
    assert len([size for size in appends if size]) > 1
    assert max(appends) <= (8 << 20) + 250_000


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_what_was_due_while_it_was_down_goes_at_the_start(broker: InProcessBroker, how: str) -> None:
    send_later(broker, b"early", 1000)
    send_later(broker, b"soon", 5000)
    send_later(broker, b"late", HOUR_MS)
    broker.advance(2)
    assert bodies(broker) == [b"early"]
    broker.clock.move(10_000_000_000)
    getattr(broker, how)()
    broker.advance(0.1)
    assert bodies(broker) == [b"soon"]
    assert broker.broker.parts.timers.count == 1
    broker.jump(3600)
    broker.advance(1)
    assert bodies(broker) == [b"late"]


def test_a_damaged_or_foreign_file_has_all_of_the_log_read(broker: InProcessBroker) -> None:
    send_later(broker, b"gone", 1000)
    send_later(broker, b"late", HOUR_MS)
    broker.advance(2)
    broker.restart()
    path = broker.root / "lakedeferred" / "timers.due"
    whole = path.read_bytes()
    for damaged in (
        whole[:-1],
        whole[:50],
        b"",
        bytes([whole[0] ^ 1]) + whole[1:],
        whole[:8] + b"f" * 32 + whole[40:],
    ):
        broker.stop()
        path.write_bytes(damaged)
        broker.restart()
        broker.advance(0.1)
        assert broker.broker.parts.timers.count == 1, "what went is not put off again"
    path.unlink(missing_ok=True)
    broker.crash()
    assert broker.broker.parts.timers.count == 1
    broker.jump(3600)
    broker.advance(1)
    assert broker.store.index.max_offset("t", 0) == 2


def test_a_start_reads_the_log_from_the_file_on(broker: InProcessBroker) -> None:
    send_later(broker, b"late", HOUR_MS)
    broker.restart()
    pending = broker.broker.parts.timers.pending
    assert pending.starts_at(1 << 60) > records(broker, "rmq_sys_wheel_timer")[0].physical_offset
    assert len(pending.table) == 1


def test_delay_levels(broker: InProcessBroker) -> None:
    """As a remoting client sends them, and as a real broker's store holds them."""
    properties = encode_properties({"UNIQ_KEY": "ID", "DELAY": "2", "REAL_TOPIC": "t", "REAL_QID": "0"})
    record = PendingRecord("SCHEDULE_TOPIC_XXXX", 1, b"level", properties, 1, b"\x7f\0\0\1\0\0\0\1")
    broker.do(lambda: broker.store.append([record]))
    broker.crash()
    broker.advance(4.9)
    assert bodies(broker) == []
    broker.advance(0.2)
    (received,) = broker.receive("t", "g", wait_ms=0)[1]
    assert received.body == b"level"
    (delivered,) = records(broker, "t")
    assert "DELAY" not in delivered.properties_map()


def test_a_message_that_cannot_be_stored_goes_later(broker: InProcessBroker) -> None:
    send_later(broker, b"later", 1000)
    broker.store.inject("append", OSError("no room"))
    broker.advance(1.9)
    assert broker.broker.parts.timers.count == 1
    broker.advance(3)
    assert bodies(broker) == [b"later"]


def test_recall(broker: InProcessBroker) -> None:
    answer = send_later(broker, b"never", 5000)
    handle = answer.entries[0].recall_handle
    version, topic, name, _, message_id = base64.urlsafe_b64decode(handle).decode().split(" ")
    assert (version, topic, name, message_id) == ("v1", "t", "broker-a", answer.entries[0].message_id)
    recalled = recall(broker, handle)
    assert (recalled.status.code, recalled.message_id) == (pb.OK, message_id)
    assert recall(broker, handle).status.code == pb.BAD_REQUEST, "it does not wait any more"
    broker.crash()
    broker.advance(10)
    assert bodies(broker) == []
    assert broker.broker.parts.timers.count == 0


def test_recalls_that_are_refused_change_nothing(broker: InProcessBroker) -> None:
    broker.create_topic("other")
    handle = send_later(broker, b"kept", 5000).entries[0].recall_handle
    text = base64.urlsafe_b64decode(handle).decode()

    def forged(*changes: tuple[str, str]) -> str:
        found = text
        for old, new in changes:
            assert old in found
            found = found.replace(old, new, 1)
        return base64.urlsafe_b64encode(found.encode()).decode()

    number = text.split(" ")[3]
    assert recall(broker, handle, "other").status.code == pb.BAD_REQUEST
    assert recall(broker, handle, "missing").status.code == pb.TOPIC_NOT_FOUND
    for wrong in (
        "",
        "no base64!",
        "ü",
        "A" * 5000,
        forged(("v1", "v2")),
        forged(("broker-a", "broker-b")),
        forged((" t ", " other ")),
        forged((number, str(int(number) + 1000))),
        forged((number, "9" * 40)),
        forged((number, "-1")),
        forged((number, "x")),
        forged((text.split(" ")[4], "another")),
    ):
        answer = recall(broker, wrong)
        assert answer.status.code == pb.BAD_REQUEST, wrong
        assert answer.message_id == ""
    broker.advance(6)
    assert bodies(broker) == [b"kept"]
    assert recall(broker, handle).status.code == pb.BAD_REQUEST, "too late"
    broker.restart(recallMessageEnable="false")
    handle = send_later(broker, b"kept too", 5000).entries[0].recall_handle
    assert recall(broker, handle).status.code == pb.FORBIDDEN
    broker.advance(6)
    assert bodies(broker) == [b"kept too"]


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ({"message_type": pb.DELAY}, CONFLICT),
        ({"message_type": pb.NORMAL, "delivery_timestamp": timestamp(10**12)}, CONFLICT),
        ({"message_type": pb.FIFO, "message_group": "g", "delivery_timestamp": timestamp(10**12)}, CONFLICT),
        ({"message_type": pb.DELAY, "message_group": "g", "delivery_timestamp": timestamp(10**12)}, CONFLICT),
        ({"message_type": pb.DELAY, "delivery_timestamp": {"seconds": -1}}, pb.ILLEGAL_DELIVERY_TIME),
        ({"message_type": pb.DELAY, "delivery_timestamp": {"seconds": 1 << 62}}, pb.ILLEGAL_DELIVERY_TIME),
        ({"message_type": pb.DELAY, "delivery_timestamp": {"nanos": -5}}, pb.ILLEGAL_DELIVERY_TIME),
        (
            {"message_type": pb.DELAY, "delivery_timestamp": {"nanos": 2_000_000_000}},
            pb.ILLEGAL_DELIVERY_TIME,
        ),
        ({"delivery_timestamp": {"seconds": 1}, "message_type": 0}, pb.OK),
    ],
)
def test_fields_that_do_not_go_together(
    broker: InProcessBroker, system: dict[str, object], expected: pb.Code
) -> None:
    answer = broker.send("t", b"one", **system)
    assert answer.status.code == expected, answer.status.message
    remedies = ("; leave it out, or send a ", "; set one, or send a ")
    assert expected != CONFLICT or any(each in answer.status.message for each in remedies)
    assert broker.store.index.max_offset("rmq_sys_wheel_timer", 0) == 0
    assert len(bodies(broker)) == (expected == pb.OK)


def test_limits_name_their_options(broker: InProcessBroker) -> None:
    refused = send_later(broker, b"far", 86_400_001).status
    assert refused.code == pb.ILLEGAL_DELIVERY_TIME
    assert "maxDelayTimeMills" in refused.message
    broker.restart(maxDelayTimeMills="0", timerMaxDelaySec="100", lakeMaxPendingTimers="2")
    refused = send_later(broker, b"far", 100_001).status
    assert (refused.code, "timerMaxDelaySec" in refused.message) == (pb.ILLEGAL_DELIVERY_TIME, True)
    for expected in (pb.OK, pb.OK, pb.TOO_MANY_REQUESTS):
        refused = send_later(broker, b"near", 10_000).status
        assert refused.code == expected
    assert "lakeMaxPendingTimers" in refused.message
    broker.restart(timerWheelEnable="false")
    refused = send_later(broker, b"none", 1000).status
    assert "timerWheelEnable" in refused.message
    broker.advance(11)
    assert bodies(broker) == [b"near", b"near"]


def test_a_time_that_is_past_needs_no_room(broker: InProcessBroker) -> None:
    broker.restart(lakeMaxPendingTimers="1")
    for expected in (pb.OK, pb.TOO_MANY_REQUESTS):
        assert send_later(broker, b"near", 10_000).status.code == expected
    assert send_later(broker, b"past", -1000).status.code == pb.OK
    assert bodies(broker) == [b"past"]
    broker.restart(lakeMaxPendingTimerBytes="1")
    assert send_later(broker, b"past", -1000).status.code == pb.OK
    assert send_later(broker, b"near", 10_000).status.code == pb.TOO_MANY_REQUESTS


def sizes(broker: InProcessBroker) -> int:
    """Bytes of the records that wait, by the records."""
    pending = broker.broker.parts.timers.pending
    found = [record for _, record in pending.records(pending.table.columns().key.tolist())]
    return sum(record.size for record in found if record is not None)


def test_what_waits_is_limited_in_bytes_behind_any_start(broker: InProcessBroker) -> None:
    """A file of an older version has no sizes."""
    broker.restart(lakeMaxPendingTimerBytes="3000")
    for expected in (pb.OK, pb.OK, pb.TOO_MANY_REQUESTS):
        refused = send_later(broker, b"x" * 1000, 10_000).status
        assert refused.code == expected
    assert "lakeMaxPendingTimerBytes" in refused.message
    assert broker.send("t", b"at once" * 1000).status.code == pb.OK
    assert len(bodies(broker)) == 1
    path = broker.root / "lakedeferred" / "timers.due"
    waits = broker.broker.parts.timers.bytes
    assert 2000 < waits == sizes(broker)

    def older() -> None:
        content = path.read_bytes()
        content = b"LBDUE001" + content[8 : -4 - 2 * 4]
        path.write_bytes(content + zlib_ng.crc32(content).to_bytes(4, "little"))

    for how in ("restart", "crash", "without", "older"):
        if how == "crash":
            broker.crash()
        else:
            broker.stop()
            {"restart": lambda: None, "without": path.unlink, "older": older}[how]()
            broker.restart()
        assert broker.broker.parts.timers.bytes == waits, how
        assert send_later(broker, b"x" * 1000, 10_000).status.code == pb.TOO_MANY_REQUESTS
    broker.advance(11)
    assert [len(each) for each in bodies(broker)] == [1000, 1000]
    assert broker.broker.parts.timers.bytes == 0
    assert send_later(broker, b"x" * 1000, 10_000).status.code == pb.OK


def test_a_recall_and_a_copy_further_on_change_the_bytes_that_wait(broker: InProcessBroker) -> None:
    answers = [send_later(broker, b"x" * number, HOUR_MS) for number in (10, 1000, 5000)]
    timers = broker.broker.parts.timers
    assert recall(broker, answers[1].entries[0].recall_handle).status.code == pb.OK
    assert timers.bytes == sizes(broker)
    assert 5000 < timers.bytes < 6000
    assert broker.do(lambda: timers.carry_forward(broker.store.max_offset)) == 2
    broker.send("t", b"more")
    assert timers.count == 2
    assert timers.bytes == sizes(broker)


def test_two_types_in_a_call_are_refused_whole(broker: InProcessBroker) -> None:
    later = message(
        "t", b"1", message_type=pb.DELAY, delivery_timestamp=timestamp(broker.clock.now_ms + 1000)
    )
    answer = broker.call("SendMessage", rpc.SendMessageRequest(messages=[later, message("t", b"2")]))
    assert answer.status.code == pb.MESSAGE_CORRUPTED
    broker.advance(2)
    assert bodies(broker) == []


def test_what_waits_is_carried_forward_before_its_segment_goes() -> None:
    with InProcessBroker(
        fileReservedTime="0", deleteWhen=";".join(f"{hour:02}" for hour in range(24))
    ) as broker:
        broker.create_topic("t")
        broker.receive("t", "g")
        send_later(broker, b"waits", HOUR_MS)
        level = encode_properties({"UNIQ_KEY": "ID", "DELAY": "14", "REAL_TOPIC": "t", "REAL_QID": "0"})
        record = PendingRecord("SCHEDULE_TOPIC_XXXX", 13, b"level", level, 1, b"\x7f\0\0\1\0\0\0\1")
        broker.do(lambda: broker.store.append([record]))
        for _ in range(20):
            broker.send("t", b"x" * 200_000)
        broker.advance(1)
        for _ in range(5):
            broker.flush()
            broker.advance(11)
        assert broker.store.min_offset > 0
        assert broker.broker.parts.timers.count == 2
        broker.crash()
        found = []
        for _ in range(100):
            broker.jump(60)
            broker.advance(0.5)
            found += [each for each in bodies(broker) if not each.startswith(b"xxx")]
        assert found == [b"level", b"waits"]


def test_records_that_are_read_together_are_those_that_are_read_alone(broker: InProcessBroker) -> None:
    for number in range(200):
        send_later(broker, b"%d" % number, 5000 + number)
    pending = broker.broker.parts.timers.pending
    keys = pending.table.due_until(broker.clock.now_ms + 60_000, 1000)
    missing = keys[-1] + 1000
    for some in ([], keys, keys[::-1], keys[::40], [keys[7], missing, keys[6], keys[150]]):
        found = list(pending.records(some))
        assert [key for key, _ in found] == some
        assert [record for _, record in found] == [pending.record(key) for key in some]
    assert pending.record(missing) is None


def test_a_clock_set_back_behind_a_failure_holds_up_what_is_due_then(broker: InProcessBroker) -> None:
    send_later(broker, b"failed", 1000)
    broker.store.inject("append", OSError("no room"))
    broker.advance(1.5)
    broker.clock.set_wall(broker.clock.now_ms - HOUR_MS)
    send_later(broker, b"new", 1000)
    broker.advance(3)
    assert bodies(broker) == [b"new"]


def test_a_file_of_a_log_that_was_longer_does_not_count_later(
    broker: InProcessBroker, tmp_path: Path
) -> None:
    for _ in range(3):
        send_later(broker, b"lost end", HOUR_MS)
    broker.restart()
    path = broker.root / "lakedeferred" / "timers.due"
    whole = path.read_bytes()
    position = int.from_bytes(whole[40:48], "little")
    broker.stop()
    path.write_bytes(with_position(whole, position + 100_000))
    broker.restart()
    assert broker.broker.parts.timers.count == 3
    broker.send("t", b"x" * 200_000)
    send_later(broker, b"kept", 1000)
    broker.crash()
    assert broker.broker.parts.timers.count == 4


def with_position(content: bytes, position: int) -> bytes:
    """The content of a file of what is put off, as of another place of the log."""
    changed = content[:40] + position.to_bytes(8, "little") + content[48:-4]
    return changed + zlib_ng.crc32(changed).to_bytes(4, "little")


def expiring(broker_options: dict[str, str] | None = None) -> InProcessBroker:
    """Segments of 1 MiB, which may go at once."""
    hours = ";".join(f"{hour:02}" for hour in range(24))
    return InProcessBroker(fileReservedTime="0", deleteWhen=hours, **(broker_options or {}))


def test_copies_are_on_disk_before_what_they_are_of_goes() -> None:
    with expiring() as broker:
        broker.create_topic("t")
        send_later(broker, b"waits", HOUR_MS)
        for _ in range(20):
            broker.send("t", b"x" * 200_000)
        for _ in range(8):
            broker.flush()
            broker.advance(11)
        assert broker.store.min_offset > 0
        copies = records(broker, "rmq_sys_wheel_timer")
        assert all(each.physical_offset < broker.store.flushed_offset for each in copies)
        assert len(copies) == 1


def test_a_disk_without_room_for_the_file_goes_on_deleting(monkeypatch: pytest.MonkeyPatch) -> None:
    with expiring() as broker:
        broker.create_topic("t")
        send_later(broker, b"waits", HOUR_MS)
        with monkeypatch.context() as patched:
            patched.setattr(pending_module, "save", no_room)
            for _ in range(20):
                broker.send("t", b"x" * 200_000)
            for _ in range(10):
                broker.flush()
                broker.advance(11)
        assert broker.store.min_offset > 0
        broker.crash()
        assert broker.broker.parts.timers.count == 1


def no_room(*arguments: object) -> int:
    raise OSError("no room")


class TimerMachine(RuleBasedStateMachine):
    """Any order of sends, recalls, time, restarts and crashes: each message comes once, not before its time, or was recalled."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = InProcessBroker(
            recallMessageEnable="true",
            lakeJournalSnapshotBytes=str(1 << 16),
            lakeJournalSnapshotPercent="100",
        )
        self.broker.__enter__()
        self.broker.create_topic("t")
        self.broker.receive("t", "g")
        self.due: dict[bytes, tuple[int, str]] = {}
        self.got: list[bytes] = []
        self.count = 0

    def teardown(self) -> None:
        self.broker.advance(120)
        self.look()
        assert not self.due, "lost"
        assert self.broker.broker.parts.timers.bytes == 0
        self.broker.__exit__(None, None, None)

    @rule(wait_ms=st.integers(-5, 30_000), count=st.integers(1, 5))
    def send(self, wait_ms: int, count: int) -> None:
        for _ in range(count):
            body = b"%d" % self.count
            self.count += 1
            answer = send_later(self.broker, body, wait_ms)
            assert answer.status.code == pb.OK
            self.due[body] = self.broker.clock.now_ms + wait_ms, answer.entries[0].recall_handle

    @rule(milliseconds=st.integers(1, 20_000))
    def wait(self, milliseconds: int) -> None:
        self.broker.advance(milliseconds / 1000)
        self.look()

    @precondition(lambda self: self.due)
    @rule(data=st.data())
    def recall_one(self, data: st.DataObject) -> None:
        body = data.draw(st.sampled_from(sorted(self.due)))
        due, handle = self.due[body]
        if due > self.broker.clock.now_ms:
            assert recall(self.broker, handle).status.code == pb.OK
            del self.due[body]

    @rule()
    def restart(self) -> None:
        self.broker.restart()

    @rule(gone_ms=st.integers(0, 10_000))
    def crash(self, gone_ms: int) -> None:
        self.broker.clock.move(gone_ms * 1_000_000)
        self.broker.crash()

    @rule(size=st.integers(1, 100_000))
    def grow(self, size: int) -> None:
        self.broker.send("t", b"-" * size)

    def look(self) -> None:
        assert self.broker.broker.parts.timers.bytes == sizes(self.broker)
        while found := bodies(self.broker):
            for body in found:
                if body.startswith(b"-"):
                    continue
                due, _ = self.due.pop(body)  # raises for one that came before or was recalled
                assert due <= self.broker.clock.now_ms


TimerMachine.TestCase.settings = settings(max_examples=rounds(3, 150), stateful_step_count=25, deadline=None)
TestTimers = TimerMachine.TestCase
