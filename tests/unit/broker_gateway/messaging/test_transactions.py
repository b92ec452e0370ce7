"""Transactions: nobody receives a half; each ends once, as its producer says, through crashes, checks and repeated calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Set

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from broker_gateway.api.grpc.codec import timestamp
from broker_gateway.deferred.due_file import load
from broker_gateway.deferred.halves import half_of
from broker_gateway.messaging.client_commands import RecoverTransaction, Sent
from broker_gateway.messaging.outcome import Outcome
from broker_gateway.messaging.transactions import Resolution
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.duration_pb2 import Duration
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.messages import message, send_request
from store.log.record import SYS_COMMIT, PendingRecord, Record, encode_properties
from tests.suite.evidence import rounds

CHECK_S, EVERY_S = 6.0, 30.0


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        broker.create_topic("t")
        broker.receive("t", "g")
        yield broker


def half(broker: InProcessBroker, body: bytes = b"half", **system: object) -> str:
    """The id of a new transaction."""
    answer = broker.send("t", body, message_type=pb.TRANSACTION, **system)
    assert answer.status.code == pb.OK, answer.status.message
    assert answer.entries[0].transaction_id == answer.entries[0].message_id
    found: str = answer.entries[0].transaction_id
    return found


def end(
    broker: InProcessBroker,
    transaction_id: str,
    resolution: pb.TransactionResolution = pb.COMMIT,
    topic: str = "t",
    source: pb.TransactionSource = pb.SOURCE_CLIENT,
) -> pb.Code:
    request = rpc.EndTransactionRequest(
        topic=pb.Resource(name=topic),
        message_id=transaction_id,
        transaction_id=transaction_id,
        resolution=resolution,
        source=source,
    )
    code: pb.Code = broker.call("EndTransaction", request).status.code
    return code


def bodies(broker: InProcessBroker) -> list[bytes]:
    found = broker.receive("t", "g", wait_ms=0)[1]
    if found:
        assert broker.ack("t", "g", *found).status.code == pb.OK
    return [each.body for each in found]


def records(broker: InProcessBroker, topic: str) -> list[Record]:
    offsets, sizes, _ = broker.store.index.entries(topic, 0, 0, 1000)
    return [broker.store.record(int(at), int(size)) for at, size in zip(offsets, sizes, strict=True)]


def producer(broker: InProcessBroker) -> list[tuple[str, bytes]]:
    """A producer of t is connected from now on; what it was asked, since it was asked for this list the last time."""
    clients = broker.broker.clients
    session = broker.do(lambda: clients.seen("producer", "127.0.0.1:50001"))
    if session.commands is None:
        broker.do(lambda: clients.keep(session, _Publishing()))
        session.commands = asyncio.Queue()
    asked = []
    while not session.commands.empty():
        sent = session.commands.get_nowait()
        assert isinstance(sent, Sent)
        assert isinstance(sent.command, RecoverTransaction)
        broker.broker.parts.client_commands.carried(sent)
        asked.append((sent.command.transaction_id, bytes(sent.command.message.view.body)))
    return asked


class _Publishing:
    size, kind, group, request_timeout_ms = 10, "PRODUCER", "", None
    published = ("t",)
    subscriptions = ()


def test_a_half_is_received_once_it_is_committed(broker: InProcessBroker) -> None:
    waiting = broker.begin_receive("t", "g", wait_ms=60_000)
    transaction = half(broker, tag="red")
    assert not waiting.done
    assert end(broker, transaction) == pb.OK
    (received,) = waiting.messages
    assert (received.body, received.system_properties.tag) == (b"half", "red")
    assert received.system_properties.message_type == pb.TRANSACTION
    assert received.system_properties.message_id == transaction
    (stored,) = records(broker, "RMQ_SYS_TRANS_HALF_TOPIC")
    (delivered,) = records(broker, "t")
    assert (stored.sys_flag, delivered.sys_flag) == (0, SYS_COMMIT)
    assert delivered.prepared_transaction_offset == stored.physical_offset
    properties = stored.properties_map()
    told = {
        name: properties[name]
        for name in ("TRAN_MSG", "PGROUP", "REAL_TOPIC", "REAL_QID", "__transactionId__")
    }
    assert told == {
        "TRAN_MSG": "true",
        "PGROUP": "t",
        "REAL_TOPIC": "t",
        "REAL_QID": "0",
        "__transactionId__": transaction,
    }
    (op,) = records(broker, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert (bytes(op.body), op.properties_map()["TAGS"]) == (b"0,", "d")
    assert broker.broker.parts.transactions.count == 0


def test_a_half_that_is_rolled_back_never_comes(broker: InProcessBroker) -> None:
    transaction = half(broker)
    assert end(broker, transaction, pb.ROLLBACK) == pb.OK
    broker.crash()
    broker.jump(1000)
    assert bodies(broker) == []
    assert broker.broker.parts.transactions.count == 0


def test_ends_that_say_nothing_leave_it_pending(broker: InProcessBroker) -> None:
    transaction = half(broker)
    assert end(broker, transaction, pb.TRANSACTION_RESOLUTION_UNSPECIFIED) == pb.OK
    assert end(broker, transaction, 77) == pb.OK  # type: ignore[arg-type]
    assert broker.broker.parts.transactions.count == 1
    assert end(broker, transaction) == pb.OK
    assert bodies(broker) == [b"half"]


def test_the_same_end_again_is_ok_and_the_other_is_not(broker: InProcessBroker) -> None:
    for first, other in ((pb.COMMIT, pb.ROLLBACK), (pb.ROLLBACK, pb.COMMIT)):
        transaction = half(broker)
        assert end(broker, transaction, first) == pb.OK
        assert end(broker, transaction, first) == pb.OK
        assert end(broker, transaction, other) == pb.INVALID_TRANSACTION_ID
    assert bodies(broker) == [b"half"]
    transaction = half(broker)
    requests = [
        rpc.EndTransactionRequest(
            topic=pb.Resource(name="t"), transaction_id=transaction, message_id=transaction, resolution=each
        )
        for each in (pb.COMMIT, pb.COMMIT, pb.ROLLBACK)
    ]
    with broker.one_tick():
        calls = [broker.begin("EndTransaction", each) for each in requests]
    assert [each.response.status.code for each in calls] == [pb.OK, pb.OK, pb.INVALID_TRANSACTION_ID]
    assert bodies(broker) == [b"half"]


def test_ids_that_are_none(broker: InProcessBroker) -> None:
    broker.create_topic("other")
    transaction = half(broker)
    for wrong in ("", " ", "x", transaction[:-1], transaction + "0", "x" * 100_000):
        assert end(broker, wrong) == pb.INVALID_TRANSACTION_ID
    assert end(broker, transaction, topic="other") == pb.INVALID_TRANSACTION_ID
    assert end(broker, transaction, topic="a b") == pb.ILLEGAL_TOPIC
    assert broker.broker.parts.transactions.count == 1
    assert bodies(broker) == []


@pytest.mark.parametrize("how", ["restart", "crash"])
def test_it_may_be_ended_after_a_restart(broker: InProcessBroker, how: str) -> None:
    ended, pending = half(broker, b"ended"), half(broker, b"pending")
    assert end(broker, ended) == pb.OK
    getattr(broker, how)()
    assert broker.broker.parts.transactions.count == 1
    assert end(broker, pending) == pb.OK
    assert bodies(broker) == [b"ended", b"pending"]


def test_a_file_written_before_an_end_is_on_disk_knows_of_it(broker: InProcessBroker) -> None:
    """A start reads the log behind the file: it would not find the end, and would have the half end once more."""
    broker.restart(flushDiskType="SYNC_FLUSH")
    transaction = half(broker)
    pending = broker.broker.parts.transactions.pending
    written: list[tuple[int, list[int]]] = []
    answered: list[Outcome] = []

    def write() -> None:
        assert not answered, "the end is on disk"
        pending.save_at_once()
        saved = load(broker.store.root, pending.name, broker.store.log_id)
        assert saved is not None
        written.append((saved.position, saved.columns.key.tolist()))

    def appended(topic: str, queue_ids: Set[int]) -> None:
        if topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
            asyncio.get_running_loop().call_soon(write)  # before the flusher can say anything

    async def commit() -> None:
        kept = asyncio.Event()

        def done(outcome: Outcome) -> None:
            answered.append(outcome)
            kept.set()

        broker.store.on_appended(appended)
        broker.broker.parts.transactions.end("t", transaction, Resolution.COMMIT, done)
        await kept.wait()

    broker.run(commit())
    assert written == [(broker.store.max_offset, [])]
    broker.crash()
    assert broker.broker.parts.transactions.count == 0
    assert bodies(broker) == [b"half"]


def test_a_crash_between_the_copy_and_its_op_record_does_not_double_it(broker: InProcessBroker) -> None:
    """Both are one append; the file of the log may hold the first alone."""
    transaction = half(broker)
    appended = broker.store.append
    broker.store.append = lambda some: appended(list(some)[:1])  # type: ignore[method-assign]
    assert end(broker, transaction) in (pb.OK, pb.INTERNAL_SERVER_ERROR)
    broker.crash()
    assert broker.broker.parts.transactions.count == 0
    broker.advance(100)
    assert bodies(broker) == [b"half"]


def test_a_producer_is_asked_again_and_again_and_then_it_is_given_up() -> None:
    with InProcessBroker(transactionCheckMax="3") as broker:
        broker.create_topic("t")
        broker.receive("t", "g")
        producer(broker)
        transaction = half(broker, b"asked")
        broker.advance(CHECK_S - 0.01)
        assert producer(broker) == []
        for wait_s in (0.02, EVERY_S, EVERY_S):
            broker.advance(wait_s)
            assert producer(broker) == [(transaction, b"asked")]
        broker.crash()
        producer(broker)
        broker.advance(EVERY_S)
        assert producer(broker) == []
        assert broker.broker.parts.transactions.count == 0
        (given_up,) = records(broker, "TRANS_CHECK_MAX_TIME_TOPIC")
        assert bytes(given_up.body) == b"asked"
        assert end(broker, transaction) == pb.INVALID_TRANSACTION_ID
        assert bodies(broker) == []


def test_the_answer_to_a_check_ends_it(broker: InProcessBroker) -> None:
    producer(broker)
    transaction = half(broker)
    broker.advance(CHECK_S + 0.1)
    assert producer(broker) == [(transaction, b"half")]
    assert end(broker, transaction, source=pb.SOURCE_SERVER_CHECK) == pb.OK
    broker.advance(100)
    assert producer(broker) == []
    assert bodies(broker) == [b"half"]


def test_a_message_with_its_own_recovery_time(broker: InProcessBroker) -> None:
    producer(broker)
    transaction = half(broker, orphaned_transaction_recovery_duration=Duration(seconds=60))
    broker.advance(59)
    assert producer(broker) == []
    broker.advance(1.1)
    assert producer(broker) == [(transaction, b"half")]
    assert end(broker, transaction) == pb.OK, "its producer is late, and the answer to the check counts"
    assert bodies(broker) == []
    assert end(broker, transaction, source=pb.SOURCE_SERVER_CHECK) == pb.OK
    assert bodies(broker) == [b"half"]


def test_a_half_with_a_delivery_time_waits_for_it_once_committed(broker: InProcessBroker) -> None:
    due = timestamp(broker.clock.now_ms + 10_000)
    first, late = half(broker, b"1", delivery_timestamp=due), half(broker, b"2", delivery_timestamp=due)
    assert end(broker, first) == pb.OK
    broker.crash()
    assert bodies(broker) == []
    broker.advance(10.1)
    assert bodies(broker) == [b"1"]
    assert end(broker, late) == pb.OK, "its time is past"
    assert bodies(broker) == [b"2"]


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ({"message_group": "g"}, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        ({"orphaned_transaction_recovery_duration": Duration(seconds=3601)}, pb.BAD_REQUEST),
        ({"orphaned_transaction_recovery_duration": Duration(seconds=-1)}, pb.BAD_REQUEST),
        ({"delivery_timestamp": timestamp(10**15)}, pb.ILLEGAL_DELIVERY_TIME),
    ],
)
def test_halves_that_are_refused(
    broker: InProcessBroker, system: dict[str, object], expected: pb.Code
) -> None:
    answer = broker.send("t", b"half", message_type=pb.TRANSACTION, **system)
    assert answer.status.code == expected
    assert records(broker, "RMQ_SYS_TRANS_HALF_TOPIC") == []


def test_limits_name_their_options(broker: InProcessBroker) -> None:
    broker.restart(lakeMaxPendingTransactions="2")
    half(broker)
    half(broker)
    answer = broker.send("t", b"half", message_type=pb.TRANSACTION)
    assert (answer.status.code, "lakeMaxPendingTransactions" in answer.status.message) == (
        pb.TOO_MANY_REQUESTS,
        True,
    )
    broker.restart(rejectTransactionMessage="true")
    answer = broker.send("t", b"half", message_type=pb.TRANSACTION)
    assert (answer.status.code, "rejectTransactionMessage" in answer.status.message) == (pb.FORBIDDEN, True)


def test_what_is_pending_is_limited_in_bytes_behind_any_start(broker: InProcessBroker) -> None:
    broker.restart(lakeMaxPendingTransactionBytes="3000")
    first = half(broker, b"x" * 1000)
    half(broker, b"x" * 1000)
    for how in ("", "crash", "restart"):
        if how:
            getattr(broker, how)()
        refused = broker.send("t", b"x" * 1000, message_type=pb.TRANSACTION).status
        assert refused.code == pb.TOO_MANY_REQUESTS
        assert "lakeMaxPendingTransactionBytes" in refused.message
    transactions = broker.broker.parts.transactions
    waits = transactions.pending.table.bytes
    assert 2000 < waits == sum(each.size for each in records(broker, "RMQ_SYS_TRANS_HALF_TOPIC"))
    assert broker.do(lambda: transactions.carry_forward(broker.store.max_offset)) == 2
    broker.settle()
    carried = records(broker, "RMQ_SYS_TRANS_HALF_TOPIC")[2:]
    assert transactions.pending.table.bytes == sum(each.size for each in carried)
    assert end(broker, first) == pb.OK
    assert transactions.pending.table.bytes == carried[1].size
    half(broker, b"x" * 1000)


def test_an_end_that_is_not_stored_changes_nothing(broker: InProcessBroker) -> None:
    transaction = half(broker)
    broker.store.inject("append", OSError("no room"))
    assert end(broker, transaction) == pb.INTERNAL_SERVER_ERROR
    assert broker.broker.parts.transactions.count == 1
    assert end(broker, transaction, pb.ROLLBACK) == pb.OK
    assert bodies(broker) == []


def test_a_half_that_is_copied_forward_was_not_checked_by_that(broker: InProcessBroker) -> None:
    producer(broker)
    transaction = half(broker, orphaned_transaction_recovery_duration=Duration(seconds=600))
    transactions = broker.broker.parts.transactions
    assert broker.do(lambda: transactions.carry_forward(broker.store.max_offset)) == 1
    assert (
        broker.do(
            lambda: transactions.carry_forward(
                records(broker, "RMQ_SYS_TRANS_OP_HALF_TOPIC")[0].physical_offset
            )
        )
        == 1
    )
    broker.crash()
    producer(broker)
    assert broker.broker.parts.transactions.count == 1
    assert "TRANSACTION_CHECK_TIMES" not in records(broker, "RMQ_SYS_TRANS_HALF_TOPIC")[-1].properties_map()
    assert end(broker, transaction) == pb.OK, "its own end counts, within its recovery time"
    assert bodies(broker) == [b"half"]


def carry(broker: InProcessBroker) -> None:
    """Copies all halves forward, as retention does."""
    transactions = broker.broker.parts.transactions
    end = broker.store.max_offset
    while transactions.pending.below(end, 1):
        assert broker.do(lambda: transactions.carry_forward(end))


@pytest.mark.parametrize("crash", [False, True])
def test_the_time_of_a_half_goes_on_when_it_is_copied_forward(broker: InProcessBroker, crash: bool) -> None:
    producer(broker)
    transaction = half(broker)
    for _ in range(2):
        broker.advance(CHECK_S / 2 - 0.5)
        carry(broker)
        if crash:
            broker.crash()
            producer(broker)
    assert producer(broker) == []
    broker.advance(1.1)
    assert producer(broker) == [(transaction, b"half")], "asked when it would have been without the copies"
    broker.advance(EVERY_S - 1)
    carry(broker)
    assert producer(broker) == []
    broker.advance(1.1)
    assert producer(broker) == [(transaction, b"half")]
    told = [each.properties_map() for each in records(broker, "RMQ_SYS_TRANS_HALF_TOPIC")]
    assert ["LB_WAITS_FROM" in each for each in told] == [False, True, True, False, True, False]
    carry(broker)
    assert end(broker, transaction) == pb.OK
    assert "LB_WAITS_FROM" not in records(broker, "t")[-1].properties_map()


def test_the_own_recovery_time_of_a_half_goes_on_when_it_is_copied_forward(broker: InProcessBroker) -> None:
    transaction = half(broker, orphaned_transaction_recovery_duration=Duration(seconds=600))
    broker.jump(599)
    carry(broker)
    broker.advance(0.5)
    assert broker.broker.parts.transactions.count == 1
    broker.clock.move(1_000_000_000)  # nobody has looked after what is due
    assert end(broker, transaction) == pb.OK
    assert bodies(broker) == [], "its time is over: that is left to the check"


def test_a_half_says_no_time_behind_its_own(broker: InProcessBroker) -> None:
    """As a store that comes from elsewhere may have one."""
    told = {"UNIQ_KEY": "LATE", "REAL_TOPIC": "t", "REAL_QID": "0", "LB_WAITS_FROM": str(10**18)}
    for text in (told["LB_WAITS_FROM"], "9" * 30, "\u00b2", "-1"):
        record = PendingRecord(
            "RMQ_SYS_TRANS_HALF_TOPIC",
            0,
            b"half",
            encode_properties(told | {"LB_WAITS_FROM": text}),
            1,
            b"\x7f\0\0\1\0\0\0\1",
        )
        broker.do(lambda record=record: broker.store.append([record]))
    due = broker.broker.parts.transactions.pending.table.columns().due.tolist()
    assert due == [broker.clock.now_ms + CHECK_S * 1000] * 4


def test_a_send_that_was_repeated_is_one_transaction(broker: InProcessBroker) -> None:
    producer(broker)
    twice = message("t", b"twice", message_type=pb.TRANSACTION)
    for _ in range(2):
        assert broker.call("SendMessage", rpc.SendMessageRequest(messages=[twice])).status.code == pb.OK
    assert broker.broker.parts.transactions.count == 2
    transaction = twice.system_properties.message_id
    assert end(broker, transaction) == pb.OK
    assert broker.broker.parts.transactions.count == 0
    broker.advance(100)
    assert producer(broker) == []
    assert bodies(broker) == [b"twice"]
    for _ in range(2):
        assert broker.call("SendMessage", rpc.SendMessageRequest(messages=[twice])).status.code == pb.OK
    broker.advance(CHECK_S + 1)
    assert broker.broker.parts.transactions.count == 1, "the first is done with when they are checked"
    assert producer(broker) == [(transaction, b"twice")]


@pytest.mark.parametrize("how", ["", "crash", "restart", "carry"])
def test_the_latest_of_a_send_that_was_repeated_counts_after_a_start_or_copy_too(
    broker: InProcessBroker, how: str
) -> None:
    """Even where an earlier one is due later, since it was checked meanwhile."""
    first = message("t", b"first", message_type=pb.TRANSACTION)
    assert broker.call("SendMessage", send_request(first)).status.code == pb.OK
    broker.advance(CHECK_S + 1)
    first.body = b"second"
    assert broker.call("SendMessage", send_request(first)).status.code == pb.OK
    if how == "carry":
        carry(broker)
    elif how:
        getattr(broker, how)()
    assert end(broker, first.system_properties.message_id) == pb.OK
    assert broker.broker.parts.transactions.count == 0
    assert bodies(broker) == [b"second"]


class _Counted(int):
    """A number that counts how often one of its kind is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


@pytest.mark.parametrize("by_check", [False, True])
def test_halves_that_have_one_id_are_not_compared_with_each_other(
    broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch, by_check: bool
) -> None:
    """A client chooses ids: lakeMaxPendingTransactions of them must not hold the event loop."""
    monkeypatch.setattr(
        "broker_gateway.messaging.transactions.half_of",
        lambda key, record: half_of(_Counted(key), record),
    )
    many = [message("t", b"x", message_type=pb.TRANSACTION, message_id="SAME") for _ in range(500)]
    for _ in range(2):
        assert broker.call("SendMessage", send_request(*many)).status.code == pb.OK
    assert broker.broker.parts.transactions.count == 1000
    _Counted.compared = 0
    if by_check:
        broker.advance(CHECK_S + 1)
    assert end(broker, "SAME") == pb.OK
    assert broker.broker.parts.transactions.count == 0
    assert _Counted.compared < 20_000


def test_the_same_id_in_another_topic_is_another_transaction(broker: InProcessBroker) -> None:
    broker.create_topic("other")
    transaction = half(broker)
    again = message("other", b"theirs", message_type=pb.TRANSACTION, message_id=transaction)
    assert broker.call("SendMessage", rpc.SendMessageRequest(messages=[again])).status.code == pb.OK
    assert end(broker, transaction) == pb.OK
    assert end(broker, transaction, pb.ROLLBACK, topic="other") == pb.OK
    assert bodies(broker) == [b"half"]


def test_a_half_too_large_to_be_checked_holds_up_no_other(broker: InProcessBroker) -> None:
    """As an import may bring one: no client can send it."""
    producer(broker)
    told = {"UNIQ_KEY": "LARGE", "REAL_TOPIC": "t", "REAL_QID": "0", "TRAN_MSG": "true"}
    told["x"] = "y" * (32_720 - len(encode_properties(told)))
    record = PendingRecord(
        "RMQ_SYS_TRANS_HALF_TOPIC", 0, b"large", encode_properties(told), 1, b"\x7f\0\0\1\0\0\0\1"
    )
    broker.do(lambda: broker.store.append([record]))
    transaction = half(broker)
    broker.advance(CHECK_S + 1)
    assert producer(broker) == [(transaction, b"half")]
    assert broker.broker.parts.transactions.count == 2
    assert end(broker, "LARGE", pb.ROLLBACK) == pb.OK
    assert broker.broker.parts.transactions.count == 1


class TransactionMachine(RuleBasedStateMachine):
    """Any order of halves, ends, checks, time, restarts and crashes: what was committed comes once, nothing else comes."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = InProcessBroker(
            lakeJournalSnapshotBytes=str(1 << 16),
            lakeJournalSnapshotPercent="100",
            transactionCheckMax="1000",
        )
        self.broker.__enter__()
        self.broker.create_topic("t")
        self.broker.receive("t", "g")
        self.pending: dict[str, bytes] = {}
        self.committed: set[bytes] = set()
        self.count = 0

    def teardown(self) -> None:
        self.look()
        assert not self.committed, "lost"
        assert self.broker.broker.parts.transactions.count == len(self.pending)
        pending = self.broker.broker.parts.transactions.pending
        left = [record for _, record in pending.records(pending.table.columns().key.tolist())]
        assert pending.table.bytes == sum(record.size for record in left if record is not None)
        self.broker.__exit__(None, None, None)

    @rule(count=st.integers(1, 4))
    def begin(self, count: int) -> None:
        for _ in range(count):
            body = b"%d" % self.count
            self.count += 1
            self.pending[half(self.broker, body)] = body

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), commit=st.booleans(), again=st.booleans())
    def end_one(self, data: st.DataObject, commit: bool, again: bool) -> None:
        transaction = data.draw(st.sampled_from(sorted(self.pending)))
        resolution = pb.COMMIT if commit else pb.ROLLBACK
        assert end(self.broker, transaction, resolution) == pb.OK
        if again:
            assert end(self.broker, transaction, resolution) == pb.OK
        body = self.pending.pop(transaction)
        if commit:
            self.committed.add(body)

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.broker.advance(seconds)

    @rule()
    def asked(self) -> None:
        for transaction, body in producer(self.broker):
            assert self.pending.get(transaction, body) == body

    @rule()
    def restart(self) -> None:
        self.broker.restart()

    @rule()
    def crash(self) -> None:
        self.broker.crash()

    @rule()
    def look(self) -> None:
        while found := bodies(self.broker):
            for body in found:
                self.committed.remove(body)  # raises for what comes twice or was never committed


TransactionMachine.TestCase.settings = settings(
    max_examples=rounds(3, 150), stateful_step_count=25, deadline=None
)
TestTransactions = TransactionMachine.TestCase
