"""Rows of topics and consumer_groups from the gateway's journal records.

Ordinals count `Batch.topics` and `Batch.groups` in their order. Parts of snapshots have rows too: a log whose older
segments are gone begins with one, and a lake that begins there has to know every topic and group.
"""

from __future__ import annotations

from typing import Any

from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from structured_streaming.rows.arrays import GREATEST_MS

Row = dict[str, Any]


def topic_rows(batch: pb.Batch, place: Row) -> list[Row]:
    """A row for each topic that a batch tells of."""
    return [
        {
            **_change(batch, place, ordinal, topic.deleted),
            "topic": topic.topic,
            "configuration": None if topic.deleted else _topic(topic),
            "other_fields": topic.others or None,
        }
        for ordinal, topic in enumerate(batch.topics)
    ]


def group_rows(batch: pb.Batch, place: Row) -> list[Row]:
    """A row for each consumer group that a batch tells of."""
    return [
        {
            **_change(batch, place, ordinal, group.deleted),
            "consumer_group": group.group,
            "configuration": None if group.deleted else _group(group),
            "other_fields": group.others or None,
        }
        for ordinal, group in enumerate(batch.groups)
    ]


def extent(batch: pb.Batch) -> tuple[int, int]:
    """Rows of a batch here, and about how many bytes of text are in them."""
    text = sum(
        len(topic.topic) + sum(map(len, topic.accept_message_types)) + len(topic.others)
        for topic in batch.topics
    )
    text += sum(len(group.group) + len(group.first_used_by) + len(group.others) for group in batch.groups)
    return len(batch.topics) + len(batch.groups), text


def _change(batch: pb.Batch, place: Row, ordinal: int, deleted: bool) -> Row:
    # a part without an id says what an append that failed should have said
    restated = batch.HasField("snapshot") and bool(batch.snapshot.snapshot_id)
    return {
        **place,
        "ordinal": ordinal,
        "deleted": deleted,
        "restated": restated,
        "change_timestamp": batch.timestamp_ms,
    }


def _topic(topic: pb.TopicChange) -> Row:
    return {
        "read_queues": topic.read_queues,
        "write_queues": topic.write_queues,
        "permission": topic.permission,
        "message_types": list(topic.accept_message_types),
        "is_ordered": topic.order,
        "created_timestamp": _microseconds(topic.created_ms),
    }


def _group(group: pb.GroupChange) -> Row:
    return {
        "retry_max_times": group.retry_max_times,
        "is_fifo": group.fifo,
        "is_consume_enabled": group.consume_enabled,
        "created_timestamp": _microseconds(group.created_ms),
        "first_used_by": group.first_used_by or None,
    }


def _microseconds(ms: int) -> int | None:
    """None for a time that is not known, or beyond the year 9999."""
    return ms * 1000 if 0 < ms <= GREATEST_MS else None
