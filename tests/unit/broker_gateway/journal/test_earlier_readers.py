"""An earlier broker reads all of today's journal whose version it knows: whoever goes back loses nothing unnoticed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from broker_gateway.delivery.in_flight import InFlight, Status
from broker_gateway.delivery.lake_only import LakeMessage, LakeOnly
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.journal.erasures import Log, records
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.journal.record import VERSION, WITH_ERASURES, WITH_HELD
from broker_gateway.journal.replay import records_from
from broker_gateway.journal.resources import group_deleted, topic_deleted
from broker_gateway.metadata.catalog import GROUPS_FILE, TOPICS_FILE, Group, Topic
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.names import JOURNAL_TOPIC
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from lakebroker_testing.logs import pending
from tests.support.brokers.earlier_versions import BEFORE_ERASURES, STORES
from tests.support.brokers.journaled import Journaled, opened

KEY, FORMER = QueueKey("g", "t", 1), QueueKey("former", "gone", 0)
QUEUES = 512
"""Of a topic, of which a snapshot has several parts."""
KINDS = [kind for kind in pb.EventKind.values() if kind != pb.EVENT_KIND_UNSPECIFIED]
FLAGS = range(16)
"""Each sum of the four flags of a message in flight that the earlier broker knows; 8 says that it is held back."""


def message(offset: int, status: Status = Status.RETURNED) -> InFlight:
    return InFlight(
        offset,
        2,
        1 << 50,
        7,
        "m",
        "c",
        auto_renew=True,
        nacked=True,
        delivered_ms=3000,
        suspended=True,
        status=status,
        attempt_id="a",
    )


def journal_everything(journaled: Journaled) -> None:
    """Has each kind of change in the journal, and how things are then, with all that can be said of it."""
    catalog, changes, index = journaled.catalog, journaled.changes, journaled.store.index
    catalog.versions |= {file: DataVersion(4, 1, 1000) for file in (TOPICS_FILE, GROUPS_FILE)}
    catalog.put_topic(Topic("t", QUEUES, 1, 4, ("FIFO",), 1000, True, '{"topicSysFlag":1}'))
    catalog.put_group(Group("g", 3, True, True, 2000, "10.0.0.1", '{"brokerId":7}'))
    _, placed = journaled.store.append([pending(KEY.topic, queue_id=KEY.queue_id)] * 2)
    statistics = MinuteStatistics()
    for failed in (False, True):
        statistics.count("t", "g", 1, 10, 0.002, failed=failed)
    journaled.minutes.note(statistics.roll(closing=True))
    journaled.tick()
    changes.removed(
        [FORMER],
        topic_deleted(catalog, Topic("gone", 1, 1), [5]),
        group_deleted(catalog, Group("former")),
    )
    changes.reset({KEY: 1})
    index.begin_at(KEY.topic, KEY.queue_id, 1)
    index.leave_out(KEY.topic, KEY.queue_id, 10, 20)
    state = journaled.deliveries.queue(KEY)
    for kind in KINDS:
        changes.events(state, kind, [message(1)], client_id="c", delivery_id=7, invisible_until_ms=1 << 50)
        journaled.tick()
    state.restore_offsets(30, 5)
    state.restore_reads_absences(True)
    state.restore_lake_only(LakeOnly((LakeMessage(12, 1, "m"),), ((13, 17),)))
    state.restore_lake_read(14)
    changes.offsets_changed(state)
    journaled.tick()
    journaled.taken_over.offset = 100
    journaled.journal.write_snapshot()
    for status in Status:
        state.restore(message(20 + status, status))
    journaled.journal.write_snapshot()
    erased = records(Log("b", journaled.store.log_id, own=True), [placed.physical_offset], 4000)
    journaled.journal.append_first(erased)
    journaled.erasures.add(each for batch in erased for each in batch.erasures)
    journaled.journal.write_snapshot()


def earlier_batch(folder: Path) -> type[Message]:
    """A batch, as the broker before erasures knows it."""
    made, name = folder / "earlier", f"{BEFORE_ERASURES[:7]}.journal.proto"
    assert protoc.main(["protoc", f"-I{STORES}", f"--descriptor_set_out={made}", name]) == 0
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(made.read_bytes()).file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(pb.Batch.DESCRIPTOR.full_name))


def fields(message: Descriptor) -> Iterator[str]:
    """All of a message and of those in it."""
    for field in message.fields:
        yield field.full_name
        if field.message_type is not None:
            yield from fields(field.message_type)


def set_fields(messages: Iterable[Message]) -> Iterator[str]:
    for each in messages:
        for field, value in each.ListFields():
            yield field.full_name
            if field.message_type is not None:
                yield from set_fields(value if field.is_repeated else [value])


def says_held(batch: pb.Batch) -> bool:
    events = any(each.kind == pb.HELD for queue in batch.queues for each in queue.events)
    return events or any(flags & 8 for queue in batch.queues for flags in queue.in_flight.flags)


def test_an_earlier_one_reads_all_that_is_of_a_version_it_knows(tmp_path: Path) -> None:
    """A field, kind or flag that it does not know would be lost in silence: records that have one are of a later version, which it
    refuses. A field that may be lost without harm is added to its `.proto` in `tests/data/stores`, with the reason."""
    with opened(tmp_path / "store") as journaled:
        journal_everything(journaled)
        bodies = [bytes(each.body) for _, each in records_from(journaled.store, JOURNAL_TOPIC, 0, 0)]
    written = [pb.Batch.FromString(body) for body in bodies]
    assert {*set_fields(written)} == {*fields(pb.Batch.DESCRIPTOR)}, (
        "what is new has to be journaled here, too"
    )
    earlier = earlier_batch(tmp_path)
    read = [
        (batch, body) for batch, body in zip(written, bodies, strict=True) if batch.version < WITH_ERASURES
    ]
    assert {*set_fields(batch for batch, _ in read)} == {*fields(earlier.DESCRIPTOR)}
    for batch, body in read:
        assert MessageToDict(earlier.FromString(body)) == MessageToDict(batch)
        assert all(flags in FLAGS for queue in batch.queues for flags in queue.in_flight.flags)
    assert {(batch.version, says_held(batch)) for batch, _ in read} == {(VERSION, False), (WITH_HELD, True)}
