"""How far groups are on queues, as Java's ConsumeStats; others are served between slices of the queues."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.tables import MAX_BODY, joined
from broker_gateway.messaging.offsets import Progress
from broker_gateway.protocol import java_json
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.java_json import ObjectKeys

SLICE = 256
"""Queues, or groups without any, looked at before others get a turn."""
_LEAST = 120
"""Bytes of a queue's entry beside the names in it."""


def message_queue(broker: str, topic: str, queue_id: int) -> dict[str, Any]:
    """A queue as Java's MessageQueue is written."""
    return {"brokerName": broker, "queueId": queue_id, "topic": topic}


class ConsumeStats:
    """Bodies of GET_CONSUME_STATS and GET_BROKER_CONSUME_STATS."""

    def __init__(self, administration: Administration) -> None:
        self._admin = administration

    async def of_group(self, group: str, topics: Iterable[str]) -> bytes:
        """On every read queue of the topics that exist, each once. Raises RequestError when no frame has room for that."""
        names = list(dict.fromkeys(topics))
        self._check_room(names)
        progress: list[Progress] = []
        for name in names:
            progress += [each async for each in self._progress(group, name)]
            await asyncio.sleep(0)
        stats = self._stats(group, names, progress)
        if len(progress) <= SLICE:
            return java_json.dumps(stats)
        return await asyncio.to_thread(java_json.dumps, stats)

    async def of_all(self, *, in_order: bool) -> bytes:
        """Of every group on each topic it has something of; of groups `in_order`, none."""
        known = {} if in_order else self._admin.offsets.topics_by_group()
        made: list[bytes] = []
        some: list[dict[str, Any]] = []
        behind = flying = looked_at = size = 0
        for group in self._admin.groups.all():
            stats = []
            for topic in sorted(known.get(group.name, ())):
                progress = [each async for each in self._progress(group.name, topic)]
                stats.append(self._stats(group.name, [topic], progress))
                behind += sum(each.behind for each in progress)
                flying += sum(each.in_flight for each in progress)
                looked_at += len(progress)
            some.append({group.name: stats})
            looked_at += 1
            if looked_at >= SLICE:
                made.append(await asyncio.to_thread(_members, some))
                size += len(made[-1])
                if size > MAX_BODY:
                    break
                some, looked_at = [], 0
        if some:
            made.append(await asyncio.to_thread(_members, some))
        head = b'{"brokerAddr":%b,"consumeStatsList":[' % java_json.dumps(self._admin.address)
        tail = b'],"totalDiff":%d,"totalInflightDiff":%d}' % (behind, flying)
        return joined(
            head,
            made,
            tail,
            f"the progress of all groups takes more than {MAX_BODY} bytes; ask for one group at a time",
        )

    async def _progress(self, group: str, topic: str) -> AsyncIterator[Progress]:
        for queue_id in range(self._admin.offsets.read_queues(topic)):
            if queue_id % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            yield self._admin.offsets.progress(group, topic, queue_id)

    def _check_room(self, topics: Iterable[str]) -> None:
        queues = size = 0
        for name in topics:
            count = self._admin.offsets.read_queues(name)
            queues += count
            size += count * (_LEAST + len(name) + len(self._admin.broker))
        if size > MAX_BODY:
            raise RequestError(
                f"{queues} queues take more than {MAX_BODY} bytes; ask for fewer topics at a time"
            )

    def _stats(self, group: str, topics: Iterable[str], progress: Iterable[Progress]) -> dict[str, Any]:
        rate = sum(self._admin.statistics.rate("messages_out", (topic, group)) for topic in topics)
        queues = [
            (message_queue(self._admin.broker, each.topic, each.queue_id), _wrapper(each))
            for each in progress
        ]
        return {"consumeTps": float(rate), "offsetTable": ObjectKeys(queues)}


def _members(values: list[dict[str, Any]]) -> bytes:
    return java_json.dumps(values)[1:-1]


def _wrapper(progress: Progress) -> dict[str, int]:
    return {
        "brokerOffset": progress.broker_offset,
        "consumerOffset": progress.consumer_offset,
        "lastTimestamp": progress.last_ms,
        "pullOffset": progress.pull_offset,
    }
