"""Which group subscribes to which topic: connected consumers tell, and what groups that are not connected left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import structlog

from broker_gateway.messaging.checks import shown
from broker_gateway.messaging.clients import Subscription
from broker_gateway.messaging.connections import Connections, Member
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.outcome import Reason, ServiceError, refused_by_log

log = structlog.get_logger(__name__)

MAX_LISTED = 10_000
"""Subscriptions in an answer."""
_SLICE = 64
"""Groups looked at before others get a turn."""


class Subscribed(NamedTuple):
    """A group's subscription to a topic; `expression` is empty while it is not `online`. `consistent`: all its connected
    consumers have the same one."""

    group: str
    topic: str
    expression: str = ""
    kind: str = ""
    online: bool = False
    updated_ms: int = 0
    message_model: str = "CLUSTERING"
    consistent: bool = True


class Subscriptions:
    """Of this broker's groups. A group's consumers are looked at in one go; others are served between groups."""

    def __init__(self, core: Core, connections: Connections) -> None:
        self._deliveries = core.deliveries
        self._changes = core.changes
        self._connections = connections

    async def all(self, topic: str | None, group: str | None) -> list[Subscribed]:
        """Those to a topic, of a group, of both or all; sorted by group and topic. PAYLOAD_TOO_LARGE beyond `MAX_LISTED`."""
        found: list[Subscribed] = []
        for count, name in enumerate(sorted(self._groups(topic, group)), 1):
            found += self._of_group(name, topic)
            if len(found) > MAX_LISTED:
                raise _too_many()
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return found

    async def of_clients(
        self, topic: str | None, group: str | None
    ) -> list[tuple[Member, Subscription, bool]]:
        """Those of each connected consumer, and whether the others of its group have the same. PAYLOAD_TOO_LARGE."""
        found: list[tuple[Member, Subscription, bool]] = []
        online = self._connections.groups() if group is None else {group}
        for count, name in enumerate(sorted(online), 1):
            members = list(self._connections.members(name))
            wanted = [
                (member, each)
                for member in members
                for each in member.how.subscriptions
                if topic is None or each.topic == topic
            ]
            if len(found) + len(wanted) > MAX_LISTED:
                raise _too_many()
            differ = _differing(members)
            found += [(member, each, each.topic not in differ) for member, each in wanted]
            if count % _SLICE == 0:
                await asyncio.sleep(0)
        return found

    def delete(self, group: str, topic: str) -> None:
        """Forgets how far a group is on a topic, and what it has in flight; one that has nothing there is deleted already.
        A group that subscribes again begins anew. FORBIDDEN while a consumer of the group subscribes, INTERNAL_SERVER_ERROR."""
        online = [
            each.client.client_id
            for each in self._connections.members(group)
            if any(subscribed.topic == topic for subscribed in each.how.subscriptions)
        ]
        if online:
            raise ServiceError(
                Reason.FORBIDDEN,
                f"group {shown(group)} has connected consumers of topic {shown(topic)}: {len(online)}, such as "
                f"{shown(online[0])}; stop them first",
            )
        keys = [key for key in self._deliveries.keys_of_group(group) if key.topic == topic]
        if not keys:
            return
        with refused_by_log():
            self._changes.removed(keys)
        for key in keys:
            self._deliveries.forget(key)
        log.info("subscription deleted", group=group, topic=topic)

    def _groups(self, topic: str | None, group: str | None) -> Iterable[str]:
        if group is not None:
            return [group]
        online = self._connections.groups()
        if topic is None:
            return online | self._deliveries.topics_by_group().keys()
        return set(self._connections.subscribers(topic)) | self._deliveries.groups_of(topic)

    def _of_group(self, group: str, topic: str | None) -> list[Subscribed]:
        members = list(self._connections.members(group))
        newest: dict[str, tuple[Member, Subscription]] = {}
        for member in members:
            for each in member.how.subscriptions:
                newest[each.topic] = member, each
        left, differ = self._deliveries.topics_of(group), _differing(members)
        topics = sorted(newest.keys() | left) if topic is None else [topic]
        found = []
        for name in topics:
            if name in newest:
                member, each = newest[name]
                found.append(
                    Subscribed(
                        group,
                        name,
                        each.expression,
                        each.kind,
                        True,
                        each.version,
                        member.how.message_model,
                        name not in differ,
                    )
                )
            elif name in left:
                found.append(Subscribed(group, name))
        return found


def _differing(members: Sequence[Member]) -> set[str]:
    """Topics that not all of a group's consumers subscribe to in the same way."""
    ways: dict[str, set[tuple[str, str]]] = {}
    counts: dict[str, int] = {}
    for member in members:
        for each in member.how.subscriptions:
            ways.setdefault(each.topic, set()).add((each.expression, each.kind))
            counts[each.topic] = counts.get(each.topic, 0) + 1
    return {topic for topic, some in ways.items() if len(some) > 1 or counts[topic] < len(members)}


def _too_many() -> ServiceError:
    return ServiceError(
        Reason.PAYLOAD_TOO_LARGE, f"there are more than {MAX_LISTED} subscriptions; name a topic or a group"
    )
