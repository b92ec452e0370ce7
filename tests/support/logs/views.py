"""Logs for the views: two of a broker whose disk was replaced, one of another broker; every kind of record that a view tells apart.

Queue offsets count on in each queue, from where it is said. Times are given in ms after `BEGIN_MS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.support.logs.raw import JOURNAL, Raw

BEGIN_MS = 1_700_000_040_000
"""The start of a minute."""
MINUTE = 60_000
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


class ViewLog:
    """The bytes of a log, record by record."""

    def __init__(self, **begin: int) -> None:
        self.data = bytearray()
        self._next: dict[tuple[str, int], int] = defaultdict(int)
        for queue, offset in begin.items():
            topic, _, queue_id = queue.rpartition("_")
            self._next[topic, int(queue_id)] = offset

    def put(
        self,
        topic: str,
        at: int,
        queue_id: int = 0,
        body: bytes = b"body",
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared: int = 0,
        **properties: str,
    ) -> int:
        """Appends a record; returns its physical offset."""
        offset = len(self.data)
        self.data += Raw(
            topic=topic.encode(),
            body=body,
            properties=b"".join(b"%s\x01%s\x02" % (k.encode(), v.encode()) for k, v in properties.items()),
            queue_id=queue_id,
            queue_offset=self._next[topic, queue_id],
            sys_flag=sys_flag,
            born_timestamp=BEGIN_MS + at - 5,
            store_timestamp=BEGIN_MS + at,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared,
        ).encoded(offset)
        self._next[topic, queue_id] += 1
        return offset

    def journal(self, at: int, *queues: pb.QueueChange, deleted: Sequence[str] = ()) -> None:
        """A record of the journal; `deleted` are names of topics and groups."""
        batch = pb.Batch(
            version=1,
            timestamp_ms=BEGIN_MS + at,
            queues=queues,
            topics=[pb.TopicChange(topic=name, deleted=True) for name in deleted],
            groups=[pb.GroupChange(group=name, deleted=True) for name in deleted],
        )
        self.put(JOURNAL, at, body=batch.SerializeToString(), TAGS="events")

    def damage(self, topic: str, at: int) -> None:
        """Bytes that are no record, and a record whose body is not the one that was written."""
        self.data += b"?" * 500
        self.put(topic, at, body=b"as written")
        begin = self.data.rindex(b"as written")
        self.data[begin : begin + 2] = b"is"


def settled(
    group: str,
    topic: str,
    queue_id: int,
    committed: int | None = None,
    *events: pb.Events,
) -> pb.QueueChange:
    """What changed of a group on a queue."""
    return pb.QueueChange(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        has_committed=committed is not None,
        committed=committed or 0,
        events=events,
    )


def happened(kind: pb.EventKind.ValueType, at: int, attempt: int, *messages: tuple[int, str]) -> pb.Events:
    """Events of messages, each its queue offset and id."""
    return pb.Events(
        kind=kind,
        timestamp_ms=BEGIN_MS + at,
        client_id="client-1",
        queue_offset=[offset for offset, _ in messages],
        attempt=[attempt] * len(messages),
        message_id=[name for _, name in messages],
    )


def first_log() -> bytes:
    """Of broker a, before its disk was lost."""
    log = ViewLog()
    for n in range(10):
        log.put("orders", n * 20_000, body=b"b" * n, UNIQ_KEY=f"A{n:03}", KEYS=f"order-{n} all", TAGS="new")
    for n in range(4):
        log.put("orders", n * MINUTE, 1, UNIQ_KEY=f"B{n:03}", KEYS=f"order-{n}")
    log.put("orders", 4 * MINUTE, 3)  # neither id nor key
    log.put("untouched", 5, UNIQ_KEY="U000")
    log.damage("orders", 5 * MINUTE)
    log.journal(
        MINUTE + 1,
        settled(
            "billing", "orders", 0, 3,
            happened(pb.DELIVERED, MINUTE - 3, 1, (0, "A000"), (1, "A001"), (2, "A002"), (3, "A003")),
            happened(pb.ACKED, MINUTE - 1, 1, (0, "A000"), (1, "A001"), (2, "A002")),
            happened(pb.EXPIRED, MINUTE, 1, (3, "A003")),
        ),
        settled("billing", "orders", 1, 0),
        settled("billing", "orders", 2, 0),
        settled("audit", "orders", 0, None, happened(pb.DELIVERED, MINUTE, 1, (0, "A000"))),
        settled("ahead", "orders", 0, 50),
        settled("billing", "nowhere", 0, 7),
        settled("both", "orders", 0, 9),
        settled("both", "orders", 0, 4),
    )  # fmt: skip
    log.put(
        "%RETRY%billing_orders", 2 * MINUTE, reconsume_times=1, UNIQ_KEY="A003", KEYS="order-3 all",
        LB_ORIGIN="0:3:2:7:billingorders",
    )  # fmt: skip
    log.journal(
        3 * MINUTE,
        settled("billing", "orders", 0, 7, happened(pb.DELIVERED, 3 * MINUTE - 1, 2, (3, "A003"))),
        settled("billing", "%RETRY%billing_orders", 0, 0),
    )
    log.put(
        "%DLQ%billing", 3 * MINUTE, reconsume_times=3, UNIQ_KEY="A003", KEYS="order-3 all",
        LB_ORIGIN="0:3:3:7:billingorders", LB_REASON="no such account",
    )  # fmt: skip
    log.journal(
        3 * MINUTE + 2,
        settled("billing", "orders", 0, None, happened(pb.DEAD_LETTERED, 3 * MINUTE + 1, 3, (3, "A003"))),
    )
    _deletions(log)
    half = log.put(HALF, 10, UNIQ_KEY="T000", REAL_TOPIC="orders", REAL_QID="0", TRAN_MSG="true", PGROUP="p")
    log.put(
        "payments", 20, sys_flag=8, prepared=half, UNIQ_KEY="T000", KEYS="t-0", TRAN_MSG="true", PGROUP="p"
    )
    log.put("payments", 30, sys_flag=4, UNIQ_KEY="T001")
    log.put("payments", 40, sys_flag=12, UNIQ_KEY="T002")
    log.put(
        "rmq_sys_wheel_timer", 50, UNIQ_KEY="D000", REAL_TOPIC="orders", REAL_QID="0",
        TIMER_DELIVER_MS=str(BEGIN_MS + 90_000), TIMER_OUT_MS=str(BEGIN_MS + 90_000),
    )  # fmt: skip
    log.put("SCHEDULE_TOPIC_XXXX", 60, 2, UNIQ_KEY="D001", DELAY="3", REAL_TOPIC="orders", REAL_QID="0")
    log.put("late", 90_000, UNIQ_KEY="D000", TIMER_DELIVER_MS=str(BEGIN_MS + 90_000))
    for topic in ("TBW102", "rmq_sys_REVIVE_LOG_c", "c_REPLY_TOPIC", "rmq_sys`", "%RETRY&"):
        log.put(topic, 70, UNIQ_KEY="S000")
    return bytes(log.data)


def _deletions(log: ViewLog) -> None:
    """Groups and topics that are gone, and those that came back."""
    for topic in ("gone", "again"):
        for queue_id in range(2):
            log.put(topic, 10, queue_id, UNIQ_KEY=f"G00{queue_id}")
    both = [settled("left", topic, queue_id, 1) for topic in ("gone", "again") for queue_id in range(2)]
    seen = happened(pb.DELIVERED, 10, 1, (0, "G000"))
    log.journal(
        20, *both, settled("deleted", "again", 0, 0, seen), settled("back", "again", 0, 0),
        settled("back", "again", 1, 0),
    )  # fmt: skip
    log.journal(MINUTE, deleted=["gone", "deleted", "back"])
    log.journal(2 * MINUTE, settled("back", "again", 0, 1))
    log.journal(3 * MINUTE, settled("left", "again", 1, 1), deleted=["again"])
    log.put("again", 4 * MINUTE, 0, UNIQ_KEY="G002")
    log.journal(
        4 * MINUTE + 1, settled("left", "again", 0, 1, happened(pb.DELIVERED, 4 * MINUTE, 1, (1, "G002")))
    )


def second_log() -> bytes:
    """Of broker a, on its new disk: one queue goes on, one began anew, of the others nothing came since."""
    log = ViewLog(orders_0=10)
    for n in range(5):
        log.put(
            "orders", 10 * MINUTE + n * 30_000, UNIQ_KEY=f"A{10 + n:03}", KEYS=f"order-{10 + n} all",
            TAGS="new",
        )  # fmt: skip
    log.put("orders", 11 * MINUTE, 1, UNIQ_KEY="B000", KEYS="order-0")
    log.put("orders", 11 * MINUTE, 1, UNIQ_KEY="C001")
    log.journal(
        10 * MINUTE + 59_999,
        settled("billing", "orders", 0, 11),
        settled("billing", "orders", 0, 12, happened(pb.DELIVERED, 10 * MINUTE, 1, (11, "A011"))),
    )
    # as a real broker writes them
    log.put(
        "%DLQ%real", 12 * MINUTE, reconsume_times=16, UNIQ_KEY="R000", KEYS="r-0", RETRY_TOPIC="orders",
        ORIGIN_MESSAGE_ID="7F00000100002A9F0000000000000000", REAL_TOPIC="%RETRY%real",
    )  # fmt: skip
    log.put(
        "%DLQ%real", 12 * MINUTE + 1, 1, reconsume_times=3, UNIQ_KEY="R001",
        DLQ_ORIGIN_TOPIC="%RETRY%real_orders", DLQ_ORIGIN_MESSAGE_ID="7F00000100002A9F00000000000000FF",
    )  # fmt: skip
    log.put("%DLQ%real", 12 * MINUTE + 2, UNIQ_KEY="R002")  # sent there by hand
    log.put("%RETRY%real", 12 * MINUTE, UNIQ_KEY="R003", reconsume_times=1, RETRY_TOPIC="orders")
    log.put("%DLQ&", 12 * MINUTE, UNIQ_KEY="R004")
    return bytes(log.data)


def other_log() -> bytes:
    """Of broker b."""
    log = ViewLog()
    for n in range(2):
        log.put("orders", n * 90_000, UNIQ_KEY=f"O{n:03}")
    log.put("shipments", 7, UNIQ_KEY="S001", KEYS="order-1")
    log.journal(MINUTE, settled("shipping", "shipments", 0, 1))
    return bytes(log.data)
