"""A topic's configuration: shown whole, changed by administrators, read from a real broker's file."""

from __future__ import annotations

from typing import Any

import pytest

from broker_gateway.metadata.catalog import Topic
from broker_gateway.metadata.kept_fields import ConfigurationError
from broker_gateway.metadata.topic_configuration import (
    changed,
    configuration,
    filter_type,
    further,
    imported,
    system_flag,
    with_message_types,
)
from tests.support.rocketmq.every_field import TOPIC

NEW = Topic("t", 8, 8)


def taken(row: dict[str, Any]) -> Topic:
    kinds, others, problems = imported("t", row)
    assert problems == []
    return Topic("t", 8, 8, accept_message_types=kinds, others=others)


def test_a_topic_shows_every_field_with_rocketmqs_defaults() -> None:
    assert configuration(Topic("t", 2, 3, 4, ("FIFO",), order=True)) == {
        "attributes": {"message.type": "FIFO"},
        "order": True,
        "perm": 4,
        "readQueueNums": 2,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "t",
        "topicSysFlag": 0,
        "writeQueueNums": 3,
    }


def test_what_is_imported_is_shown_as_it_was() -> None:
    topic = taken(TOPIC)
    assert topic.accept_message_types == ("FIFO",)
    assert configuration(topic) == TOPIC
    assert (filter_type(topic), system_flag(topic), further(topic)) == (
        "MULTI_TAG",
        3,
        {"ofANewerBroker": [1]},
    )
    assert taken(configuration(NEW)) == NEW, "defaults take nothing"


def test_a_message_type_that_is_absent_or_unknown_stays_until_somebody_says_one() -> None:
    absent = taken({**TOPIC, "attributes": {}})
    assert absent.accept_message_types == ()
    assert configuration(absent)["attributes"] == {}
    kinds, others, (problem,) = imported("t", {"attributes": {"message.type": "QUANTUM"}})
    assert "message.type 'QUANTUM' is unknown" in problem
    unknown = Topic("t", 8, 8, accept_message_types=kinds, others=others)
    assert configuration(unknown)["attributes"] == {"message.type": "QUANTUM"}
    for topic in (absent, unknown):
        same = changed(NEW, topic, {}, {}, mixed=False)
        assert (same.accept_message_types, configuration(same)["attributes"]) == (
            (),
            configuration(topic)["attributes"],
        )
        fifo = changed(NEW, topic, {"+message.type": "FIFO"}, {}, mixed=False)
        every = with_message_types(fifo, ())
        assert configuration(fifo)["attributes"] == {"message.type": "FIFO"}
        assert configuration(every)["attributes"] == {"message.type": "MIXED"}
        assert configuration(with_message_types(topic, ()))["attributes"] == {"message.type": "MIXED"}


def test_an_administrator_gives_every_field_and_unknown_ones_stay() -> None:
    fields = {"topicFilterType": "MULTI_TAG", "topicSysFlag": 3, "ofANewerBroker": [1]}
    made = changed(
        NEW, None, {"+cleanup.policy": "COMPACTION", "+message.type": "DELAY"}, fields, mixed=False
    )
    assert made.accept_message_types == ("DELAY",)
    assert configuration(made)["attributes"] == {"cleanup.policy": "COMPACTION", "message.type": "DELAY"}
    later = changed(NEW, made, {"+reserve.time": "5"}, {"topicSysFlag": 0}, mixed=False)
    assert later.accept_message_types == ("DELAY",)
    assert configuration(later) == configuration(NEW) | {
        "attributes": {"cleanup.policy": "COMPACTION", "message.type": "DELAY", "reserve.time": "5"},
        "ofANewerBroker": [1],
    }
    assert changed(NEW, later, {"-message.type": ""}, {}, mixed=False).accept_message_types == ("NORMAL",)
    assert changed(NEW, later, {"+message.type": "MIXED"}, {}, mixed=True).accept_message_types == ()
    assert changed(NEW, later, {"+message.type": "UNSPECIFIED"}, {}, mixed=False).accept_message_types == (
        "MESSAGE_TYPE_UNSPECIFIED",
    )
    assert changed(NEW, None, {}, {}, mixed=False).accept_message_types == ("NORMAL",)
    assert changed(NEW, Topic("t", 1, 1), {}, {}, mixed=False).accept_message_types == (), "mixed already"


@pytest.mark.parametrize(
    ("changes", "fields", "why"),
    [
        (
            {"+message.type": "MIXED"},
            {},
            "MIXED message type is not supported; set enableMixedMessageType=true",
        ),
        ({"+queue.type": "BatchCQ"}, {}, "queue.type is BatchCQ, and queues of batches are not served"),
        ({"+retention": "1"}, {}, "'retention' is unsupported"),
        (
            {},
            {"topicFilterType": "ALL"},
            "topicFilterType of topic t is 'ALL'; use one of SINGLE_TAG, MULTI_TAG",
        ),
        ({}, {"new": "x" * 20_000}, "topic t has 20010 bytes"),
    ],
)
def test_what_makes_no_sense_is_refused(changes: dict[str, str], fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        changed(NEW, None, changes, fields, mixed=False)


def test_batches_of_a_real_broker_are_named() -> None:
    kinds, others, (problem,) = imported("t", {"attributes": {"queue.type": "BatchCQ"}})
    assert "its batches are not delivered here" in problem
    shown = configuration(Topic("t", 8, 8, accept_message_types=kinds, others=others))
    assert shown["attributes"] == {"queue.type": "BatchCQ"}
