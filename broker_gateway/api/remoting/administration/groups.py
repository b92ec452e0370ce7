"""Consumer groups as RocketMQ's programs see them, and as they ask for them."""

from __future__ import annotations

from typing import Any

from broker_gateway.api.remoting.administration.topics import check_ascii
from broker_gateway.messaging.checks import check_group
from broker_gateway.metadata.catalog import Group
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.java_json import JsonObject
from broker_gateway.runtime.clock import now_ms

_INT32 = 1 << 31
_FIXED: dict[str, Any] = {
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
"""What a group's configuration says and a broker of one kind does anyway."""


def group_config(group: Group) -> dict[str, Any]:
    """The group as RocketMQ's programs see it."""
    return {
        **_FIXED,
        "consumeEnable": group.consume_enabled,
        "consumeMessageOrderly": group.fifo,
        "groupName": group.name,
        "retryMaxTimes": group.retry_max_times,
    }


def checked_group(name: str) -> str:
    """The name itself, of a group that clients may use. INVALID_PARAMETER, ILLEGAL_CONSUMER_GROUP."""
    check_ascii("group", name)
    check_group(name)
    return name


def group_of_config(config: JsonObject) -> Group:
    """The group that a configuration describes. Raises BodyError or RequestError."""
    name = checked_group(config.text("groupName", ""))
    retries = config.integer("retryMaxTimes", 16)
    if not -_INT32 <= retries < _INT32:
        raise RequestError(
            f"retryMaxTimes {retries} is outside of {-_INT32} to {_INT32 - 1}", ResponseCode.INVALID_PARAMETER
        )
    enabled = config.members.get("consumeEnable")
    return Group(
        name,
        retries,
        config.boolean("consumeMessageOrderly"),
        True if enabled is None else config.boolean("consumeEnable"),
        now_ms(),
    )
