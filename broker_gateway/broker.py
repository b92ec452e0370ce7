"""The broker: its parts put together, its scheduled work, its start and stop.

Owns no behaviour of its own. Everything in it runs on the event loop; the store flushes on its own thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import structlog

from broker_gateway.clients import ClientRegistry
from broker_gateway.clock import now_ms
from broker_gateway.config import GatewayConfig
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.journal import Journal
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.journal.replay import Replayed, replay
from broker_gateway.lake import Lake
from broker_gateway.metadata.catalog import Catalog, Group
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.metadata.peers import Peers
from broker_gateway.metrics import MAX_SERIES, Metrics
from broker_gateway.retention import Retention, rules_of
from broker_gateway.self_check import SelfCheck
from broker_gateway.service.access import Access
from broker_gateway.service.admin import AdminService
from broker_gateway.service.administration.administration import Administration
from broker_gateway.service.client import ClientService
from broker_gateway.service.dead_letters import DeadLetterMover
from broker_gateway.service.messaging import MessagingService
from broker_gateway.service.offsets import OffsetService
from broker_gateway.service.receive import Poll, ReceiveService
from broker_gateway.service.redelivery import Redelivery
from broker_gateway.service.resources import Resources
from broker_gateway.service.route import RouteService
from broker_gateway.service.send import SendService
from broker_gateway.service.settlement import SettlementService
from broker_gateway.turn import Stage, Turn
from broker_gateway.watchdog import watch
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
_LOOK_S = 0.1
_PEERS_S = 0.2
_HOUSEKEEPING_S = 10.0
_MEMORY_RATIO = 0.4
"""Of physical memory (`accessMessageInMemoryMaxRatio`): a queue wholly within it is read from its start."""


class Broker:
    """One broker over one store. `messaging` and `admin` are what transports bind."""

    def __init__(self, config: GatewayConfig, store: MessageStore, metrics: Metrics, access: Access) -> None:
        self._config = config
        self._store = store
        self.metrics = metrics
        self.catalog = Catalog()
        self.deliveries = DeliveryTable(self._first_offset)
        self.clients = ClientRegistry(config.lake.lake_max_clients)
        self.turn = Turn()
        self.journal = Journal(
            store,
            self.catalog,
            self.deliveries,
            config.lake.lake_journal_snapshot_bytes,
            partial(self.turn.add, Stage.JOURNAL),
        )
        self.minutes = MinuteStatistics()
        self.peers = Peers(config.lake.lake_peers_file, config.broker.broker_name)
        self.wakeups: Wakeups[Poll] = Wakeups(partial(self.turn.add, Stage.WAKE), self.deliveries.offer)
        resources = Resources(config, self.catalog)
        mover = DeadLetterMover(store, resources, self.journal, self.wakeups, metrics)
        self._redelivery = Redelivery(self.catalog, self.deliveries, self.clients, mover, self.wakeups)
        self._receive = ReceiveService(
            config,
            store,
            resources,
            self.deliveries,
            self._redelivery,
            self.journal,
            self.wakeups,
            metrics,
            self.minutes,
        )
        self._client = ClientService(config, self.catalog, resources, self.clients, self._redelivery)
        send = SendService(config, store, resources, self.wakeups, self.turn, metrics, self.minutes)
        self.load_compiled = send.load_compiled
        self.messaging = MessagingService(
            RouteService(config, resources, self.peers),
            send,
            self._receive,
            SettlementService(
                config,
                resources,
                self.deliveries,
                self.clients,
                self.journal,
                mover,
                self.wakeups,
                metrics,
            ),
            self._client,
            OffsetService(store, resources, self.deliveries),
            self.journal,
        )
        location = config.lake.lake_location
        self.retention = Retention(
            store,
            self.journal,
            rules_of(config.store),
            Lake(location) if location else None,
            config.lake.lake_force_delete,
        )
        self.self_check = SelfCheck(store)
        self.admin = AdminService(config, self.catalog, self.journal, access, self.peers)
        self.administration = Administration(
            config,
            store,
            self.catalog,
            self.deliveries,
            self.journal,
            self.wakeups,
            self.clients,
            metrics,
            (resources.configure, self.admin.configure),
            self.retention,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Replayed:
        """Replays the journal and begins the scheduled work."""
        self.peers.refresh()
        replayed = replay(self._store, self.catalog, self.deliveries)
        self.journal.replayed_to(replayed.snapshot_offset)
        self.catalog.on_topic = self.journal.topic
        self.catalog.on_group = self._group_changed
        self._tasks = [
            asyncio.create_task(self._repeat(_LOOK_S, self._look_after_due), name="redelivery"),
            asyncio.create_task(self._repeat(_PEERS_S, self._look_for_peers), name="peers"),
            asyncio.create_task(self._repeat(_HOUSEKEEPING_S, self._housekeep), name="housekeeping"),
            asyncio.create_task(watch(), name="watchdog"),
            asyncio.create_task(
                self._repeat(self._config.lake.lake_self_check_interval / 1000, self._check),
                name="self-check",
            ),
            asyncio.create_task(
                self._repeat(self._config.store.clean_resource_interval / 1000, self._retain),
                name="retention",
            ),
        ]
        return replayed

    async def drain(self) -> None:
        """Ends waiting receives with nothing and closes telemetry streams."""
        self._receive.close()
        self.clients.end_streams()

    async def stop(self) -> None:
        """Ends the scheduled work and journals what is pending, with a snapshot."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.journal.stats(self.minutes.roll(now_ms(), closing=True))
        self.journal.write_snapshot()

    def gauges(self) -> Iterable[tuple[str, str, dict[str, str], float]]:
        """What metrics read when asked: (name, help, labels, value). Called on the metrics thread."""
        store = self._store
        node = {"cluster": store.cluster, "node_id": store.broker}
        yield "rocketmq_storage_size", "Bytes of the local log", node, store.max_offset - store.min_offset
        behind = store.max_offset - store.flushed_offset
        yield "rocketmq_storage_flush_behind_bytes", "Bytes not yet on disk", node, behind
        damaged, looks = self.self_check.damaged, self.self_check.looks
        yield "lakebroker_store_damaged_places", "Found by the last self-check", node, damaged
        yield "lakebroker_store_self_checks", "Looks for damage since the start", node, looks
        yield "rocketmq_consumer_connections", "Clients known", node, len(self.clients)
        yield "lakebroker_waiting_receives", "Receives that wait for a message", node, self.wakeups.waiting
        lag: dict[tuple[str, str], list[int]] = {}
        for state in list(self.deliveries.queues()):
            group, topic, queue_id = state.key
            sums = lag.setdefault((topic, group), [0, 0])
            sums[0] += store.index.max_offset(topic, queue_id) - state.cursor + len(state.in_flight)
            sums[1] += len(state.in_flight)
        for (topic, group), (behind, flying) in list(lag.items())[:MAX_SERIES]:
            labels = {**node, "topic": topic, "consumer_group": group}
            yield "rocketmq_consumer_lag_messages", "Messages not settled", labels, behind
            yield "rocketmq_consumer_inflight_messages", "Messages in flight", labels, flying

    def _first_offset(self, topic: str, queue_id: int) -> int:
        """Where a new group begins: at the start of a queue that never lost its front and whose log fits
        memory, else at its end (the original's `initPopOffsetByCheckMsgInMem`); of a retry topic at the start."""
        index = self._store.index
        if topic.startswith(RETRY_PREFIX):
            return index.min_offset(topic, queue_id)
        if index.min_offset(topic, queue_id) == index.begin(topic, queue_id):
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if self._store.max_offset - self._store.min_offset <= memory * _MEMORY_RATIO:
                return 0
        return index.max_offset(topic, queue_id)

    def _group_changed(self, group: Group) -> None:
        self.journal.group(group)
        self._client.group_changed(group)

    async def _look_after_due(self) -> None:
        self._redelivery.sweep_due()

    async def _look_for_peers(self) -> None:
        self.peers.refresh()

    async def _retain(self) -> None:
        await self.retention.look()

    async def _check(self) -> None:
        await self.self_check.look()

    async def _housekeep(self) -> None:
        for session in self.clients.expire():
            if session.group:
                self._redelivery.release(session.client_id, session.group)
        self.journal.stats(self.minutes.roll(now_ms()))
        self.administration.statistics.sample(now_ms())

    @staticmethod
    async def _repeat(period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            try:
                await work()
            except Exception:
                log.exception("scheduled work failed; it is tried again", period_s=period_s)
