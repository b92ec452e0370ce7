"""A record of the journal: a batch as the body of a record of the journal topic. See `journal.proto`."""

from __future__ import annotations

import structlog
from google.protobuf.message import DecodeError

from broker_gateway.metadata.names import JOURNAL_TOPIC
from broker_gateway.runtime.clock import now_ms
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from store.log.record import PendingRecord, Record, encode_properties, tags_code

log = structlog.get_logger(__name__)
VERSION, WITH_HELD, WITH_ERASURES = 1, 2, 3
"""Of records that say nothing of HELD messages or erasures, and of those that do: who does not know them would take those messages
as settled, and give erased ones out."""
LATEST = WITH_ERASURES
EVENTS_TAG = "events"
SNAPSHOT_TAG = "snapshot"
EVENTS_A_RECORD = 1024
_TAGS = {tag: (tags_code(tag), encode_properties({"TAGS": tag})) for tag in (EVENTS_TAG, SNAPSHOT_TAG)}
"""Tags code and properties."""


class JournalVersionError(Exception):
    """The journal was written by a later version."""


def encode(batch: pb.Batch, tag: str, host: bytes) -> PendingRecord:
    """The record of a batch, which gets version and time."""
    batch.version = max(batch.version, VERSION)
    batch.timestamp_ms = now_ms()
    code, properties = _TAGS[tag]
    return PendingRecord(
        topic=JOURNAL_TOPIC,
        queue_id=0,
        body=batch.SerializeToString(),
        properties=properties,
        born_timestamp=batch.timestamp_ms,
        born_host=host,
        tags_code=code,
    )


def decode(record: Record) -> pb.Batch | None:
    """The batch in a record; None when it does not decode, which is logged. Raises JournalVersionError."""
    batch = pb.Batch()
    try:
        batch.ParseFromString(bytes(record.body))
    except DecodeError:
        log.error("journal record does not decode; skipped", physical_offset=record.physical_offset)
        return None
    if batch.version > LATEST:
        raise JournalVersionError(
            f"journal record at physical offset {record.physical_offset} has version {batch.version}, "
            f"this lakebroker reads up to {LATEST}; start the version that wrote it or a later one"
        )
    return batch
