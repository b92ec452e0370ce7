"""What a broker's journal wrote before contributors registered with it, byte by byte: a start reads it as it was."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from broker_gateway.delivery.in_flight import Status
from broker_gateway.delivery.queue_delivery import QueueKey
from broker_gateway.metadata.catalog import GROUPS_FILE, TOPICS_FILE, Group, Topic
from lakebroker_pb.lakebroker.journal.v1 import journal_pb2 as pb
from tests.support.brokers.journaled import append_body, batches, opened

WRITTEN = (
    (
        "events",
        "CAEQl6KRxqA0GhQKAXQYAiABKAYyBEZJRk9A6AdQARoPCgRnb25lGAEgASgGQOgHIhQKAWcYAyABMNAPOggxMC4wLjAuMSIN"
        "CgRsZWZ0GAMoATDQDypCCgFnEgF0IAQoATo2CAEQuBcaAWMhBwAAAAAAAAAogICAgICAgAIyBAABAgM6BAEBAQFCAm0wQgJt"
        "MUICbTJCAm0zKjgKAWcSAXQYASACKAE6KggBELgXGgFjIQcAAAAAAAAAKICAgICAgIACMgIAAToCAQFCAm0wQgJtMSo2CgRs"
        "ZWZ0EgRnb25lIAEoATokCAEQuBcaAWMhBwAAAAAAAAAogICAgICAgAIyAQA6AQFCAm0wQhYKC3RvcGljcy5qc29uGAQgmqKR"
        "xqA0QiEKFnN1YnNjcmlwdGlvbkdyb3VwLmpzb24YAiCYopHGoDQ=",
    ),
    ("events", "CAEQmaKRxqA0Kg4KAWcSAXQgBCgBMAJYAg=="),
    ("events", "CAEQmaKRxqA0KjQKAWcSAXQgBDooCAMQoB8aAWMhCAAAAAAAAAAogICAgICAgAIyAQI6AQJCAm0ySAFQAVgC"),
    (
        "snapshot",
        "CAEQmqKRxqA0GhwKAXQYAiABKAYyBEZJRk86AgAAQOgHSgIAAFABGhUKBGdvbmUYASABKAY6AQBA6AdKAQAiFAoBZxgDIAEw"
        "0A86CDEwLjAuMC4xIg0KBGxlZnQYAygBMNAPKogBCgFnEgF0IARCfAoEAAECAxIEAQECARoggICAgICAgAKAgICAgICAAoCA"
        "gICAgIACgICAgICAgAIiIAcAAAAAAAAABwAAAAAAAAAIAAAAAAAAAAcAAAAAAAAAKgJtMCoCbTEqAm0yKgJtMzIBYzIBYzIB"
        "YzIBYzoIuBe4F7gXuBdCBAAABwBYAipMCgFnEgF0GAEgAkJACgIAARICAQEaEICAgICAgIACgICAgICAgAIiEAcAAAAAAAAA"
        "BwAAAAAAAAAqAm0wKgJtMTIBYzIBYzoEuBe4Fyo1CgRsZWZ0EgRnb25lIAFCJQoBABIBARoIgICAgICAgAIiCAcAAAAAAAAA"
        "KgJtMDIBYzoCuBc6KQogMTYxNTc1NjQzNzU2NDcxNmExZWUyM2QzMzA5ZjE1N2MYASDdBigBQhYKC3RvcGljcy5qc29uGAQg"
        "mqKRxqA0QiEKFnN1YnNjcmlwdGlvbkdyb3VwLmpzb24YAiCYopHGoDRCFgoLdG9waWNzLmpzb24YBCCaopHGoDRCIQoWc3Vi"
        "c2NyaXB0aW9uR3JvdXAuanNvbhgCIJiikcagNA==",
    ),
    (
        "events",
        "CAEQmqKRxqA0KiIKAWcSAXQgBDoWCAIQmqKRxqA0GgFjMgEAOgEBQgJtMFgCMhYKAXQSAWcY4NQDIAMoCToGCgECEgED",
    ),
    ("events", "CAEQmqKRxqA0KhkKAWcSAXQYASABKAEwAToJCAcQmqKRxqA0"),
    ("events", "CAEQmqKRxqA0Kg4KBGxlZnQSBGdvbmVIAQ=="),
    ("events", "CAEQmqKRxqA0GgsKBGdvbmUQAUoBBUIWCgt0b3BpY3MuanNvbhgEIJqikcagNA=="),
    (
        "events",
        "CAEQmqKRxqA0IggKBGxlZnQQAUIWCgt0b3BpY3MuanNvbhgEIJqikcagNEIhChZzdWJzY3JpcHRpb25Hcm91cC5qc29uGAIg"
        "mKKRxqA0",
    ),
)
"""Tag and body. Topics `t`, `gone`, groups `g`, `left`, deliveries; an offset a client committed; a message given back;
a snapshot; an acknowledgement with a minute; a reset; `gone` is deleted with its one state, and `left`."""
SNAPSHOT_OFFSET = 861


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_store_of_before(tmp_path: Path, snapshot: bool) -> None:
    with opened(tmp_path) as before:
        for tag, body in WRITTEN:
            if tag == "snapshot":
                assert before.store.max_offset == SNAPSHOT_OFFSET
            if snapshot or tag != "snapshot":
                append_body(before.store, base64.b64decode(body), tag)
    with opened(tmp_path) as after:
        assert after.journal.needed_from() == (SNAPSHOT_OFFSET if snapshot else 0)
        assert list(after.catalog.topics()) == [Topic("t", 2, 1, 6, ("FIFO",), 1000, True)]
        assert list(after.catalog.groups()) == [Group("g", 3, True, False, 2000, "10.0.0.1")]
        counters = {file: each.counter for file, each in after.catalog.versions.items()}
        assert counters == {TOPICS_FILE: 4, GROUPS_FILE: 2}
        assert after.store.index.min_offset("gone", 0) == 5
        states, _, _ = after.told()
        assert states == {
            QueueKey("g", "t", 0): (4, 2, {1: (1, 7), 2: (2, 8), 3: (1, 7)}),
            QueueKey("g", "t", 1): (1, None, {}),
        }
        (nacked,) = (state := after.deliveries.queue(QueueKey("g", "t", 0))).returned
        assert (nacked.queue_offset, nacked.status) == (2, Status.RETURNED)
        assert (nacked.nacked, nacked.suspended) == (True, True)
        assert {each.first_delivered_ms for each in state.in_flight.values()} == {3000}


def test_a_record_has_what_all_contributors_noted(tmp_path: Path) -> None:
    with opened(tmp_path) as journaled:
        journaled.minutes.note([pb.MinuteStats(topic="t", minute_ms=60_000)])
        journaled.fly(QueueKey("g", "t", 0), 1)
        journaled.catalog.put_group(Group("g"))
        journaled.catalog.put_topic(Topic("t", 1, 1))
        journaled.tick()
        (batch,) = batches(journaled.store)
        told = (batch.topics, batch.groups, batch.queues, batch.stats, batch.data_versions)
        assert [len(each) for each in told] == [1, 1, 1, 1, 2]
        assert journaled.replayed() == journaled.told()
