"""Changes of attributes: what is after them, and what is refused."""

from __future__ import annotations

import pytest

from broker_gateway.metadata.attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, altered
from broker_gateway.metadata.kept_fields import ConfigurationError


def test_attributes_are_added_changed_and_removed() -> None:
    made = altered(TOPIC_ATTRIBUTES, None, {"+cleanup.policy": "COMPACTION", "+reserve.time": "-1"})
    assert made == {"cleanup.policy": "COMPACTION", "reserve.time": "-1"}
    later = altered(TOPIC_ATTRIBUTES, made, {"+reserve.time": "7", "+message.type": "FIFO"})
    assert later == {"cleanup.policy": "COMPACTION", "reserve.time": "7", "message.type": "FIFO"}
    assert altered(TOPIC_ATTRIBUTES, later, {"-reserve.time": ""}).keys() == {
        "cleanup.policy",
        "message.type",
    }
    assert altered(TOPIC_ATTRIBUTES, later, {}) == later
    assert altered(TOPIC_ATTRIBUTES, {"of.a.newer.broker": "x"}, {}) == {"of.a.newer.broker": "x"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority.factor", "100"),
        ("lite.bind.topic", "orders"),
        ("lite.sub.model", "Exclusive"),
        ("lite.sub.reset.offset.exclusive", "TRUE"),
        ("lite.sub.reset.offset.unsubscribe", "false"),
        ("lite.sub.client.quota", str((1 << 63) - 1)),
        ("lite.sub.client.max.event.cnt", "+10"),
        ("lite.sub.wildcard", "*"),
    ],
)
def test_attributes_of_groups(name: str, value: str) -> None:
    assert altered(GROUP_ATTRIBUTES, {}, {f"+{name}": value}) == {name: value}


@pytest.mark.parametrize(
    ("current", "change", "value", "why"),
    [
        (None, "message.type", "FIFO", "attribute 'message.type' is written wrongly"),
        ({}, "", "", "attribute '' is written wrongly"),
        ({}, "+", "", r"attribute '\+' is written wrongly"),
        ({}, "*reserve.time", "1", "written wrongly"),
        ({}, "+reserve-time", "1", "written wrongly"),
        (None, "-reserve.time", "", "'reserve.time' cannot be removed from what is new"),
        ({}, "-reserve.time", "", "'reserve.time' is not there"),
        ({}, "+retention", "1", "'retention' is unsupported; use message.type, queue.type"),
        ({"new": "1"}, "-new", "", "'new' is unsupported"),
        ({}, "+queue.type", "SimpleCQ", "queue.type cannot be changed; it is given at the creation or never"),
        ({"cleanup.policy": "DELETE"}, "-cleanup.policy", "", "cleanup.policy cannot be changed"),
        (None, "+cleanup.policy", "delete", "cleanup.policy is 'delete'; use one of DELETE, COMPACTION"),
        (None, "+message.type", "X" * 1000, "message.type is 'XXX.*…; use one of UNSPECIFIED"),
        (None, "+reserve.time", "-2", "reserve.time is '-2'; a number of -1 to 9223372036854775807"),
        (None, "+reserve.time", str(1 << 63), "reserve.time is '9223372036854775808'"),
        (None, "+reserve.time", "1h", "reserve.time is '1h'"),
        (None, "+reserve.time", "٣", "reserve.time is '٣'"),
        (None, "+lite.topic.expiration", "43201", "a number of -1 to 43200"),
    ],
)
def test_what_makes_no_sense_is_refused(
    current: dict[str, str] | None, change: str, value: str, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        altered(TOPIC_ATTRIBUTES, current, {change: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority.factor", "101"),
        ("lite.sub.model", "shared"),
        ("lite.sub.reset.offset.exclusive", "1"),
        ("lite.sub.client.max.event.cnt", "9"),
        ("lite.bind.topic", ""),
        ("lite.bind.topic", "a b"),
        ("lite.sub.wildcard", "x" * 256),
        ("message.type", "FIFO"),
    ],
)
def test_attributes_of_groups_that_make_no_sense(name: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        altered(GROUP_ATTRIBUTES, {}, {f"+{name}": value})


def test_one_attribute_is_changed_once() -> None:
    with pytest.raises(ConfigurationError, match=r"'reserve.time' is changed twice"):
        altered(TOPIC_ATTRIBUTES, {"reserve.time": "1"}, {"+reserve.time": "2", "-reserve.time": ""})
