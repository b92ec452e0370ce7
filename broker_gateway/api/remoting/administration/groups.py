"""Consumer groups by hand: created, changed, deleted, listed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import structlog

from broker_gateway.api.remoting.administration.topics import check_text, refused_by_log
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.journal.deliveries import DeliveryJournal
from broker_gateway.journal.resources import group_deleted
from broker_gateway.messaging.checks import check_group
from broker_gateway.messaging.outcome import ServiceError
from broker_gateway.metadata.catalog import Catalog, CatalogFullError, Group
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.metadata.system_groups import SYSTEM_GROUPS
from broker_gateway.protocol.codes import ResponseCode
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.java_json import JsonObject
from broker_gateway.runtime.clock import now_ms

log = structlog.get_logger(__name__)

_INT32 = 1 << 31
_AT_ONCE = 100
"""Groups that are changed before others are served."""
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
    """The name itself, of a group that clients may use. INVALID_PARAMETER."""
    check_text("group", name)
    try:
        check_group(name)
    except ServiceError as error:
        raise RequestError(error.message, ResponseCode.INVALID_PARAMETER) from error
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


class GroupAdministration:
    """Groups of the broker; what changes them returns when the change is in the log."""

    def __init__(
        self,
        catalog: Catalog,
        deliveries: DeliveryTable,
        changes: DeliveryJournal,
        topic_changed: Callable[[str], None],
    ) -> None:
        self._topic_changed = topic_changed
        self._catalog = catalog
        self._deliveries = deliveries
        self._changes = changes
        self._journal = changes.journal

    def known(self, name: str) -> Group:
        """A group, the system's too. SUBSCRIPTION_GROUP_NOT_EXIST."""
        group = self._catalog.group(name) or SYSTEM_GROUPS.get(name)
        if group is None:
            raise RequestError("No group in this broker", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
        return group

    def all(self) -> list[Group]:
        """Every group as of now; the system's first."""
        return list((SYSTEM_GROUPS | {group.name: group for group in self._catalog.groups()}).values())

    async def put(self, *groups: Group) -> None:
        """Creates or changes groups."""
        for number, group in enumerate(groups, 1):
            try:
                with refused_by_log(), self._kept(group.name):
                    self._catalog.put_group(group)
            except CatalogFullError as error:
                raise RequestError(str(error)) from error
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def delete(self, name: str, *, clean_offsets: bool) -> None:
        """Deletes a group, with `clean_offsets` its state on every queue; one that is not there is deleted already.

        INVALID_PARAMETER for the system's.
        """
        if name in SYSTEM_GROUPS and self._catalog.group(name) is None:
            raise RequestError(
                f"the group[{name}] is the system's and cannot be deleted", ResponseCode.INVALID_PARAMETER
            )
        keys = self._deliveries.keys_of_group(name) if clean_offsets else []
        with refused_by_log():
            deleted = self._catalog.delete_group(
                name, lambda group: self._changes.removed(keys, group_deleted(self._catalog, group))
            )
            if deleted is None and keys:
                self._changes.removed(keys)
        for key in keys:
            self._deliveries.forget(key)
        if deleted is not None:
            self._topic_changed(RETRY_PREFIX + name)
            log.info("consumer group deleted", group=name, clean_offsets=clean_offsets)

    def _kept(self, name: str) -> AbstractContextManager[None]:
        roll_back = partial(self._catalog.roll_back_group, self._catalog.group(name), name)
        return self._journal.kept(roll_back)
