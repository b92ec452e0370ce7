"""Consumer groups as RocketMQ's programs see them, and as they ask for them."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.api.remoting.administration.topics import check_ascii, refused_configuration
from broker_gateway.messaging.checks import check_group
from broker_gateway.metadata import group_configuration
from broker_gateway.metadata.catalog import Group
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.java_json import JsonObject
from broker_gateway.runtime.clock import now_ms

_INT32 = 1 << 31


def checked_group(name: str) -> str:
    """The name itself, of a group that clients may use. INVALID_PARAMETER, ILLEGAL_CONSUMER_GROUP."""
    check_ascii("group", name)
    check_group(name)
    return name


def group_of_config(config: JsonObject, known: Callable[[str], Group | None]) -> Group:
    """The group that a configuration describes; `known` finds it as it is. Raises BodyError or RequestError."""
    name = checked_group(config.text("groupName", ""))
    retries = config.integer("retryMaxTimes", 16)
    if not -_INT32 <= retries < _INT32:
        raise RequestError(
            f"retryMaxTimes {retries} is outside of {-_INT32} to {_INT32 - 1}", ResponseCode.INVALID_PARAMETER
        )
    enabled = config.members.get("consumeEnable")
    with refused_configuration():
        others = group_configuration.changed(name, known(name), config.members)
    return Group(
        name,
        retries,
        config.boolean("consumeMessageOrderly"),
        True if enabled is None else config.boolean("consumeEnable"),
        now_ms(),
        others=others,
    )
