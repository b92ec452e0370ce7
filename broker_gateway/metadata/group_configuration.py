"""A consumer group's configuration as RocketMQ's programs and files have it: names, defaults, what is allowed.

| fields | here |
|---|---|
| `groupName`, `consumeEnable`, `consumeMessageOrderly`, `retryMaxTimes` | the group's own, with effect |
| `groupRetryPolicy` | kept in `Group.others`, with effect: see `retry_policy.py` |
| the others of `_DEFAULTS`, `subscriptionDataSet`, and what nobody here knows | kept there, and shown |
| the group's row of the file's `forbiddenTable`: topics that it may not read | kept there |

`Group.others` has no fields that are as in `_DEFAULTS`. Defaults are those of RocketMQ 5.5.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from broker_gateway.metadata import retry_policy
from broker_gateway.metadata.attributes import GROUP_ATTRIBUTES, altered
from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.kept_fields import (
    ConfigurationError,
    fields_of,
    same,
    shown,
    shown_fields,
    text_of,
)
from broker_gateway.metadata.retry_policy import RetryPolicy

OWN_FIELDS = frozenset({"groupName", "consumeEnable", "consumeMessageOrderly", "retryMaxTimes"})
_DEFAULTS: Mapping[str, Any] = {
    "attributes": {},
    "brokerId": 0,
    "consumeBroadcastEnable": True,
    "consumeFromMinEnable": True,
    "consumeTimeoutMinute": 15,
    "groupRetryPolicy": {"type": "CUSTOMIZED"},
    "groupSysFlag": 0,
    "notifyConsumerIdsChangedEnable": True,
    "retryQueueNums": 1,
    "whichBrokerWhenConsumeSlowly": 1,
}
_BITS = {
    "brokerId": 64,
    "consumeTimeoutMinute": 32,
    "groupSysFlag": 32,
    "retryQueueNums": 32,
    "whichBrokerWhenConsumeSlowly": 64,
}
_SUBSCRIPTIONS = "subscriptionDataSet"
_FORBIDDEN = "forbiddenTable"
_ALWAYS = 100
"""`priority.factor` of a group without one, as in `SubscriptionGroupAttributes`."""
_KNOWN = OWN_FIELDS | _DEFAULTS.keys() | {_SUBSCRIPTIONS}


def configuration(group: Group, *, exact: bool = False) -> dict[str, Any]:
    """Every field of the group; `exact` also those numbers that JSON does not have, as a file had them."""
    kept = (fields_of if exact else shown_fields)(group.others)
    kept.pop(_FORBIDDEN, None)
    return {
        **_DEFAULTS,
        **kept,
        "consumeEnable": group.consume_enabled,
        "consumeMessageOrderly": group.fifo,
        "groupName": group.name,
        "retryMaxTimes": group.retry_max_times,
    }


def further(group: Group) -> str:
    """JSON of the fields that are not the group's own and not as RocketMQ's defaults; empty: none."""
    kept = fields_of(group.others)
    if kept.pop(_FORBIDDEN, None) is None:
        return group.others
    return text_of(f"group {group.name}", kept, strict=False)


def forbidden(group: Group) -> dict[str, Any]:
    """The group's row of `forbiddenTable`, by topic."""
    found = fields_of(group.others).get(_FORBIDDEN, {}) if group.others else {}
    return found if isinstance(found, dict) else {}


def policy(group: Group) -> RetryPolicy:
    """The group's retry policy; RocketMQ's default one where the configuration's makes no sense."""
    return _policy(group.others)


@lru_cache(256)
def _policy(others: str) -> RetryPolicy:
    try:
        return retry_policy.policy_of(fields_of(others).get("groupRetryPolicy"))
    except ConfigurationError:
        return retry_policy.DEFAULT


def lite_bind_topic(group: Group) -> str:
    """The topic whose lite topics the group's consumers receive from; empty for other groups."""
    return lite_attribute(group, "lite.bind.topic")


def lite_attribute(group: Group, name: str) -> str:
    """An attribute of a group of lite consumers; empty when it has none."""
    return _attributes(group.others).get(name, "") if group.others else ""


def priority_factor(group: Group) -> int:
    """Of 100 receives of a topic of PRIORITY messages, how many look at its queues by priority: `priority.factor`, 0 to 100."""
    return int(_attributes(group.others).get("priority.factor", _ALWAYS)) if group.others else _ALWAYS


@lru_cache(256)
def _attributes(others: str) -> Mapping[str, str]:
    found = fields_of(others).get("attributes")
    if not isinstance(found, dict):
        return {}
    known = GROUP_ATTRIBUTES
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, str) and name in known and known[name].expected(value) is None
    }


def changed(name: str, known: Group | None, members: Mapping[str, Any]) -> str:
    """`Group.others` after an administrator gave these fields, of which `attributes` are changes.

    A field that is not among them becomes RocketMQ's default, one that nobody here knows stays. Raises ConfigurationError.
    """
    before = {} if known is None else fields_of(known.others)
    kept = {field: value for field, value in before.items() if field not in _KNOWN or field == "attributes"}
    given = {field: value for field, value in members.items() if value is not None and field != _FORBIDDEN}
    return _together(name, known, kept, given)


def changed_in_part(name: str, known: Group | None, members: Mapping[str, Any]) -> str:
    """As `changed`, but a field that is not among them stays, and one that is null goes. Raises ConfigurationError."""
    for field in members:
        if field in OWN_FIELDS or field == _FORBIDDEN:
            raise ConfigurationError(f"{field} is not set by the configuration of group {name}; leave it out")
    before = {} if known is None else fields_of(known.others)
    kept = {field: value for field, value in before.items() if field not in members or field == "attributes"}
    given = {field: value for field, value in members.items() if value is not None}
    return _together(name, known, kept, given)


def _together(name: str, known: Group | None, kept: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """What is kept, which may make no sense if it was imported, and what is given, which must."""
    what = f"group {name}"
    for field, value in given.items():
        _check(name, field, value)
    text_of(what, given, strict=True)
    changes = given.get("attributes", {})
    if not isinstance(changes, dict) or not all(isinstance(each, str) for each in changes.values()):
        raise ConfigurationError(f"attributes of {what} is {shown(changes)}, not an object of texts")
    current = kept.get("attributes", {})
    current = None if known is None else current if isinstance(current, dict) else {}
    fields = {**kept, **given, "attributes": altered(GROUP_ATTRIBUTES, current, changes)}
    return text_of(what, _further(fields), strict=False)


def imported(
    name: str, row: Mapping[str, Any], forbidden: Mapping[str, Any] | None = None
) -> tuple[str, list[str]]:
    """`Group.others` of a group in a real broker's file, and what of it has no effect because it makes no sense.

    Raises ConfigurationError for what is too much.
    """
    problems = []
    try:
        retry_policy.check(row.get("groupRetryPolicy"))
    except ConfigurationError as error:
        problems.append(f"group {name}: {error}; it is kept, and the default retry policy is in force")
    fields = {field: value for field, value in _further(row).items() if field != _FORBIDDEN}
    if forbidden:
        fields[_FORBIDDEN] = dict(forbidden)
    return text_of(f"group {name}", fields, strict=False), problems


def _further(members: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that are not the group's own, and not as in `_DEFAULTS`."""
    return {
        field: value
        for field, value in members.items()
        if field not in OWN_FIELDS
        and not (field in _KNOWN and value is None)
        and not (field in _DEFAULTS and same(value, _DEFAULTS[field]))
    }


def _check(name: str, field: str, value: Any) -> None:
    where = f"{field} of group {name} is {shown(value)}"
    if field == "groupRetryPolicy":
        try:
            retry_policy.check(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"group {name}: {error}") from error
    elif field in _BITS:
        most = 1 << (_BITS[field] - 1)
        if type(value) is not int or not -most <= value < most:
            raise ConfigurationError(f"{where}; a whole number of {-most} to {most - 1} is allowed")
    elif field == _SUBSCRIPTIONS:
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise ConfigurationError(f"{where}; an array of objects is allowed")
    elif isinstance(_DEFAULTS.get(field), bool) and not isinstance(value, bool):
        raise ConfigurationError(f"{where}; use true or false")
