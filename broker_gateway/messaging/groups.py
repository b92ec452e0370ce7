"""Consumer groups by hand, for every edge: created, changed, deleted, listed."""

from __future__ import annotations

import asyncio
from functools import partial

import structlog

from broker_gateway.journal.resources import group_deleted
from broker_gateway.messaging.checks import check_group
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import Reason, ServiceError, refused_by_log
from broker_gateway.metadata.catalog import Group
from broker_gateway.metadata.system_groups import SYSTEM_GROUPS

log = structlog.get_logger(__name__)

_AT_ONCE = 100
"""Groups that are changed before others are served."""


class Groups:
    """Groups of the broker; what changes them returns when the change is in the log."""

    def __init__(self, core: Core) -> None:
        self._catalog = core.catalog
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._journal = core.journal

    def known(self, name: str) -> Group:
        """A group, the system's too. CONSUMER_GROUP_NOT_FOUND."""
        group = self._catalog.group(name) or SYSTEM_GROUPS.get(name)
        if group is None:
            raise ServiceError(Reason.CONSUMER_GROUP_NOT_FOUND, "No group in this broker")
        return group

    def find(self, name: str) -> Group | None:
        """A group that administrators and clients made."""
        return self._catalog.group(name)

    def all(self) -> list[Group]:
        """Every group as of now; the system's first."""
        return list((SYSTEM_GROUPS | {group.name: group for group in self._catalog.groups()}).values())

    def put(self, group: Group) -> tuple[Group, bool]:
        """Creates or changes a group; as it is now, and whether it is new.

        ILLEGAL_CONSUMER_GROUP, INTERNAL_SERVER_ERROR; raises CatalogFullError.
        """
        check_group(group.name)
        return self._put(group)

    async def put_all(self, *groups: Group) -> None:
        """Creates or changes groups, as `put`; nothing is changed when one of them is refused for its name, or when there
        is no room for all."""
        for group in groups:
            check_group(group.name)
        self._catalog.check_room_for_groups(group.name for group in groups)
        for number, group in enumerate(groups, 1):
            self._put(group)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def _put(self, group: Group) -> tuple[Group, bool]:
        roll_back = partial(self._catalog.roll_back_group, self._catalog.group(group.name), group.name)
        with refused_by_log():
            put = self._catalog.put_group(group)
            self._journal.keep(roll_back)
        return put

    def delete(self, name: str, *, clean_offsets: bool) -> None:
        """Deletes a group, with `clean_offsets` its state on every queue; one that is not there is deleted already.

        ILLEGAL_CONSUMER_GROUP for the system's; INTERNAL_SERVER_ERROR.
        """
        if name in SYSTEM_GROUPS and self._catalog.group(name) is None:
            raise ServiceError(
                Reason.ILLEGAL_CONSUMER_GROUP, f"the group[{name}] is the system's and cannot be deleted"
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
            log.info("consumer group deleted", group=name, clean_offsets=clean_offsets)
