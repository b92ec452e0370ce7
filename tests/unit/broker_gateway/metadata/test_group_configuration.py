"""A group's configuration: shown whole, changed by administrators, read from a real broker's file."""

from __future__ import annotations

from typing import Any

import pytest

from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.group_configuration import (
    changed,
    changed_in_part,
    configuration,
    forbidden,
    further,
    imported,
    policy,
    priority_factor,
)
from broker_gateway.metadata.kept_fields import ConfigurationError
from broker_gateway.metadata.retry_policy import DEFAULT, ExponentialPolicy
from tests.support.rocketmq.every_field import EXPONENTIAL, GROUP


def group(others: str) -> Group:
    return Group("g", others=others)


def test_a_group_shows_every_field_with_rocketmqs_defaults() -> None:
    assert configuration(Group("g", 3, fifo=True, consume_enabled=False)) == {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": False,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": True,
        "consumeTimeoutMinute": 15,
        "groupName": "g",
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": 3,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def test_what_is_imported_is_shown_as_it_was() -> None:
    others, problems = imported("g", GROUP)
    assert problems == []
    assert configuration(group(others)) == GROUP
    assert imported("g", configuration(Group("g")))[0] == "", "defaults take nothing"
    assert imported("g", {"brokerId": None, "subscriptionDataSet": None, "new": None})[0] == '{"new":null}'
    assert imported("g", {"consumeBroadcastEnable": 1})[0] == '{"consumeBroadcastEnable":1}', "1 is not true"


def test_an_administrator_gives_every_field_and_unknown_ones_stay() -> None:
    given = {**GROUP, "attributes": {"+priority.factor": "5"}}
    before = group(changed("g", None, given))
    assert configuration(before) == GROUP
    after = group(changed("g", before, {"groupName": "g", "brokerId": 3, "consumeFromMinEnable": None}))
    assert configuration(after) == configuration(Group("g")) | {
        "attributes": {"priority.factor": "5"},
        "brokerId": 3,
        "ofANewerBroker": {"on": True},
    }
    assert changed("g", after, {"ofANewerBroker": 5, "attributes": {"-priority.factor": ""}}) == (
        '{"ofANewerBroker":5}'
    )


def test_what_was_imported_and_makes_no_sense_hinders_no_change_of_something_else() -> None:
    row = {"brokerId": "x", "groupRetryPolicy": 7, "attributes": [1], "new": float("nan")}
    before = group(imported("g", row)[0])
    after = group(changed_in_part("g", before, {"groupSysFlag": 5}))
    shown = configuration(after)
    assert (shown["groupSysFlag"], shown["brokerId"], shown["groupRetryPolicy"]) == (5, "x", 7)
    after = group(changed("g", before, {"groupSysFlag": 5, "attributes": {"+priority.factor": "1"}}))
    assert after.others == '{"attributes":{"priority.factor":"1"},"groupSysFlag":5,"new":NaN}'


def test_what_a_group_may_not_read_is_kept_beside_its_fields() -> None:
    before = group(imported("g", {"brokerId": 3, "forbiddenTable": 5}, {"t": 1})[0])
    assert forbidden(before) == {"t": 1}
    assert configuration(before) == configuration(Group("g")) | {"brokerId": 3}
    assert further(before) == '{"brokerId":3}'
    for others in (
        changed("g", before, {"forbiddenTable": {}, "brokerId": 3}),
        changed_in_part("g", before, {"brokerId": 3}),
    ):
        assert group(others) == before
    assert forbidden(Group("g")) == forbidden(group('{"forbiddenTable":[]}')) == {}


def test_a_change_in_part_leaves_the_others() -> None:
    before = group(changed("g", None, {"brokerId": 3, "attributes": {"+priority.factor": "5"}}))
    after = group(changed_in_part("g", before, {"groupRetryPolicy": EXPONENTIAL}))
    assert configuration(after) == configuration(before) | {"groupRetryPolicy": EXPONENTIAL}
    after = group(changed_in_part("g", after, {"attributes": {"+priority.factor": "6"}, "brokerId": 0}))
    assert configuration(after)["attributes"] == {"priority.factor": "6"}
    assert "brokerId" not in after.others
    assert changed_in_part("g", after, {"groupRetryPolicy": None, "attributes": None}) == (
        '{"attributes":{"priority.factor":"6"}}'
    )
    for field in ("groupName", "retryMaxTimes", "consumeMessageOrderly", "consumeEnable", "forbiddenTable"):
        with pytest.raises(ConfigurationError, match=f"{field} is not set by the configuration of group g"):
            changed_in_part("g", after, {field: 1})


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"brokerId": 1 << 63}, "brokerId of group g is 9223372036854775808; a whole number of"),
        ({"brokerId": True}, "brokerId of group g is True"),
        ({"retryQueueNums": 1 << 31}, "retryQueueNums of group g is 2147483648"),
        ({"consumeTimeoutMinute": 1.5}, "consumeTimeoutMinute of group g is 1.5"),
        ({"groupSysFlag": "1"}, "groupSysFlag of group g is '1'"),
        ({"consumeBroadcastEnable": 1}, "consumeBroadcastEnable of group g is 1; use true or false"),
        ({"notifyConsumerIdsChangedEnable": "no"}, "notifyConsumerIdsChangedEnable of group g is 'no'"),
        ({"subscriptionDataSet": {}}, "subscriptionDataSet of group g is an object of 0; an array"),
        ({"subscriptionDataSet": ["t"]}, "subscriptionDataSet of group g is an array of 1"),
        ({"attributes": ["+a"]}, "attributes of group g is an array of 1, not an object of texts"),
        ({"attributes": {"+priority.factor": 5}}, "attributes of group g is an object of 1"),
        ({"attributes": {"priority.factor": "5"}}, "'priority.factor' is written wrongly"),
        ({"groupRetryPolicy": {"type": "X"}}, "group g: type of groupRetryPolicy is 'X'"),
        ({"groupRetryPolicy": 7}, "group g: groupRetryPolicy is 7"),
        ({"new": "x" * 20_000}, "group g has 20010 bytes that are only kept, most of them in 'new'"),
        ({"new": float("nan")}, "new of group g holds a number"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_and_value(members: dict[str, Any], why: str) -> None:
    for change in (changed, changed_in_part):
        with pytest.raises(ConfigurationError, match=why):
            change("g", None, members)


@pytest.mark.parametrize(
    ("others", "factor"),
    [
        ("", 100),
        ("{}", 100),
        ('{"attributes":{"priority.factor":"0"}}', 0),
        ('{"attributes":{"priority.factor":"+7"}}', 7),
        ('{"attributes":{"priority.factor":"often"}}', 100),
        ('{"attributes":{"priority.factor":"101"}}', 100),
        ('{"attributes":{"priority.factor":5}}', 100),
        ('{"attributes":[]}', 100),
    ],
)
def test_the_priority_factor_is_the_groups_or_the_default_one(others: str, factor: int) -> None:
    """What makes no sense came from a real broker's file."""
    assert priority_factor(group(others)) == factor


def test_the_policy_is_the_configurations_or_the_default_one() -> None:
    assert policy(Group("g")) is DEFAULT
    assert policy(group(changed("g", None, {"groupRetryPolicy": EXPONENTIAL}))) == ExponentialPolicy(1, 9, 3)
    for absurd in (
        {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": -5}},
        {"customizedRetryPolicy": {"next": [float("nan")]}},
        "EXPONENTIAL",
    ):
        others, (problem,) = imported("g", {"groupRetryPolicy": absurd})
        assert problem.startswith("group g: ")
        assert problem.endswith("; it is kept, and the default retry policy is in force")
        assert policy(group(others)) is DEFAULT
