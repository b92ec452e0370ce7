"""The broker: its parts put together, its scheduled work, its start and stop.

Owns no behaviour of its own. Everything in it runs on the event loop; the store flushes on its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from functools import partial

import structlog

from broker_gateway.api.extensions import Extensions, MetricsSink
from broker_gateway.api.grpc.admin.described import DescribedBroker
from broker_gateway.api.grpc.admin.peer_calls import PeerCalls
from broker_gateway.api.grpc.admin.resources import AdminService
from broker_gateway.api.grpc.admin.service import PublicAdminService
from broker_gateway.api.grpc.guarded import Guarded
from broker_gateway.api.grpc.messaging import MessagingService
from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.cluster.hand_over import HandOver
from broker_gateway.cluster.registration import Registration
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.reload import Configuration
from broker_gateway.delivery.table import DeliveryTable
from broker_gateway.delivery.wakeups import Wakeups
from broker_gateway.journal.broker_journal import BrokerJournal
from broker_gateway.journal.minute_stats import MinuteStatistics
from broker_gateway.journal.replay import Replayed
from broker_gateway.journal.snapshot import SnapshotPace
from broker_gateway.lake.reader import Lake
from broker_gateway.maintenance.retention import Retention, rules_of
from broker_gateway.maintenance.self_check import SelfCheck
from broker_gateway.maintenance.slow_consumers import ProtectBroker
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.factory import make_messaging
from broker_gateway.messaging.load_report import LoadReport
from broker_gateway.messaging.ordered_sends import LOOK_S
from broker_gateway.messaging.poll import Poll
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.metadata.names import RETRY_PREFIX
from broker_gateway.metadata.peers import Peers
from broker_gateway.metadata.system_topics import make_system_topics
from broker_gateway.observability.broker_statistics import BrokerStatistics
from broker_gateway.observability.dispatch_lag import DispatchLag
from broker_gateway.observability.metrics import Metrics
from broker_gateway.runtime.clock import monotonic_ms
from broker_gateway.runtime.on_thread import on_thread
from broker_gateway.runtime.scheduled_tasks import (
    DISPATCH_LAG_S,
    HOUSEKEEPING_S,
    LOAD_REPORT_S,
    PEERS_S,
    PROTECT_BROKER_S,
    PUT_OFF_FILES_S,
    REDELIVERY_S,
    ScheduledTasks,
    until_midnight_s,
)
from broker_gateway.runtime.tick import Stage, Tick
from broker_gateway.runtime.watchdog import watch
from store.errors import StoreError
from store.lite_queues import PREFIX as LITE_PREFIX
from store.message_store import MessageStore

log = structlog.get_logger(__name__)
_NO_EXTENSIONS = Extensions()


class Broker:
    """One broker over one store. `messaging`, `admin` and `public_admin` are what transports bind."""

    def __init__(
        self,
        configuration: Configuration,
        store: MessageStore,
        metrics: Metrics,
        extensions: Extensions = _NO_EXTENSIONS,
    ) -> None:
        config = self._config = configuration.current
        self.configuration = configuration
        self._store = store
        self.metrics = metrics
        self._sinks = 0
        self._stops = False
        self._watchdog: asyncio.Task[None] | None = None
        self.tasks = ScheduledTasks()
        self.statistics = BrokerStatistics(metrics)
        self.peers = Peers(config.lake.lake_peers_file, config.broker.broker_name)
        self.core = core = self._make_core(config)
        self.catalog, self.deliveries, self.journal = core.catalog, core.deliveries, core.journal
        self.tick, self.wakeups, self.minutes = core.tick, core.wakeups, core.minutes
        self.registration = Registration(config, self.catalog, self.tasks)
        peer_routes = self.registration.peer_routes
        bound = config.server.bind_address
        self._hand_over = HandOver(config.registration, self.peers, peer_routes, bound)
        location = config.lake.lake_location
        lake = Lake(location, lambda: self._stops) if location else None
        parts = self.parts = make_messaging(config, core, self.peers, peer_routes, self._hand_over, lake)
        self.clients, self.admission = parts.clients, parts.admission
        for each in parts.put_off:
            self.journal.register(each.pending)
        self.messaging = MessagingService(config, core, parts, extensions.append_hooks)
        force = config.lake.lake_force_delete
        self.retention = Retention(store, self.journal, rules_of(config.store), lake, force, parts.put_off)
        self.dispatch_lag = DispatchLag(store, lake, lambda: self.retention.rules.refuse)
        self.load_report = LoadReport(self.admission, LOAD_REPORT_S)
        self.self_check = SelfCheck(store)
        self._protect = ProtectBroker(config, store, self.catalog, self.deliveries)
        calls = PeerCalls(self.peers, config.proxy.grpc_bind_address)
        described = DescribedBroker(config, store, parts, self.dispatch_lag)
        admin = AdminService(config, self.catalog, parts, calls, self.tasks, described)
        self.admin = Guarded(admin, self.admission.admin_broker)
        self.administration = Administration(
            configuration,
            core,
            parts,
            self.statistics,
            self.dispatch_lag,
            self.retention,
        )
        self.public_admin = PublicAdminService(
            configuration, parts, self.administration.statistics, calls, self.messaging.send_one
        )
        parts.listen(configuration)
        for part in (admin, self.messaging, self._protect, self.administration, self):
            configuration.on_change(part.configure)

    def _make_core(self, config: GatewayConfig) -> Core:
        """The broker's state and its tick. The store announces appends to the receives that wait."""
        catalog, tick, store = Catalog(), Tick(), self._store
        deliveries = DeliveryTable(self._first_offset, catalog.auto_created.count_queues)
        options = config.lake
        pace = SnapshotPace(options.lake_journal_snapshot_bytes, options.lake_journal_snapshot_percent)
        journaled = self.journaled = BrokerJournal(
            store,
            catalog,
            deliveries,
            pace,
            partial(tick.add, Stage.JOURNAL),
            lambda work: asyncio.get_running_loop().call_soon(work),
        )
        wakeups: Wakeups[Poll] = Wakeups(partial(tick.add, Stage.WAKE), deliveries.arrivals.appended)
        store.on_appended(wakeups.arrived)
        return Core(
            store,
            catalog,
            deliveries,
            journaled.journal,
            journaled.deliveries,
            journaled.taken_over,
            journaled.erasures,
            wakeups,
            tick,
            pace,
            self.metrics,
            MinuteStatistics(),
        )

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self._config = config
        self.retention.use(rules_of(config.store))
        self.registration.configure(config)

    def load(self) -> Replayed:
        """Topics, groups, offsets and what is in flight, from the journal; system topics are made."""
        self.peers.refresh()
        replayed = self.journal.replay()
        self.parts.erasing.publish()
        self.parts.redelivery.restarted(with_lake=self.parts.old_messages is not None)
        make_system_topics(self._config, self.catalog)
        arrivals, registration = self.deliveries.arrivals, self.registration
        self.catalog.listen(topic_changed=lambda topic: arrivals.queues_changed(topic.name))
        noted = self.journaled.resources
        self.catalog.listen(
            topic_changed=noted.topic, group_changed=noted.group, rolled_back=noted.rolled_back
        )
        self.catalog.listen(removed=self.parts.lite_subscriptions.topic_removed)
        self.parts.long_polling.listen(self.catalog)
        self.messaging.listen(self.catalog)
        self.catalog.listen(
            topic_changed=lambda topic: registration.topic_changed(topic.name),
            group_changed=lambda group: registration.topic_changed(RETRY_PREFIX + group.name),
            rolled_back=lambda topic, _: registration.topic_changed(topic),
            removed=lambda topic: registration.topic_changed(topic),
        )
        return replayed

    def schedule(self, *, watchdog: bool = True) -> None:
        """Begins the scheduled work, with a thread that watches the event loop if `watchdog`."""
        tasks, config = self.tasks, self._config
        tasks.add("redelivery", REDELIVERY_S, self.parts.redelivery.sweep_due)
        tasks.add("peers", PEERS_S, self.peers.refresh)
        look_s = min(LOOK_S, config.registration.poll_name_server_interval / 1000)
        tasks.add("ordered-sends", look_s, self.parts.ordered_sends.run)
        tasks.add("housekeeping", HOUSEKEEPING_S, self._housekeep)
        tasks.add("self-check", config.lake.lake_self_check_interval / 1000, self._check)
        tasks.add("retention", config.store.clean_resource_interval / 1000, self._retain)
        tasks.add("broker-statistics", until_midnight_s, self.statistics.record)
        tasks.add("protect-broker", PROTECT_BROKER_S, self._protect.run_once)
        tasks.add("load-report", LOAD_REPORT_S, self.load_report.check)
        tasks.add("dispatch-lag", DISPATCH_LAG_S, self.dispatch_lag.measure)
        broker, lite = config.broker, self.parts.lite_subscriptions
        tasks.add("lite-topics", broker.lite_ttl_check_interval / 1000, lite.expire)
        tasks.add("lite-subscriptions", broker.lite_subscription_check_interval / 1000, lite.look)
        tasks.add("put-off-files", PUT_OFF_FILES_S, self._save_put_off)
        for each in self.parts.put_off:
            each.loop.begin()
        tasks.start()
        if watchdog:
            self._watchdog = asyncio.create_task(watch(), name="watchdog")

    def load_compiled(self) -> bool:
        """Loads compiled code of sends, receives and searches by key; False when some could not be. To be called on a thread.

        What could not be loaded is logged. Sends and receives go their slower plain path then; searches have none.
        """
        plain, tried_again = "they go the slower plain path", "each tries again, and may fail"
        parts = {part: (load, plain) for part, load in self.messaging.compiled_parts.items()}
        parts["searches by key"] = (self.parts.message_search.load_compiled, tried_again)
        loaded = True
        for part, (load, consequence) in parts.items():
            try:
                load()
            except Exception:
                log.exception("compiled code could not be loaded", part=part, consequence=consequence)
                loaded = False
        return loaded

    def feed(self, sink: MetricsSink, period_s: float) -> None:
        """Gives the metrics to a sink at intervals, on a thread; a slow one is waited for."""

        def publish() -> None:
            sink.publish(list(self.metrics.registry.collect()))

        self._sinks += 1
        self.tasks.add(
            f"metrics-sink-{self._sinks}",
            period_s,
            partial(on_thread, publish, f"metrics-sink-{self._sinks}"),
        )

    async def drain(self) -> None:
        """Ends waiting receives with nothing, tells clients to connect anew and closes their telemetry streams."""
        self.parts.long_polling.close()
        self.parts.pulls.close()
        self.parts.client_commands.reconnect_all()
        self.clients.end_streams()

    async def stop(self) -> None:
        """Ends the scheduled work and journals what is pending, with a snapshot.

        What cannot be written is logged and no error: whoever had to know that a change is in the log was told so.
        """
        self._stops = True
        await self.tasks.stop()
        for each in self.parts.put_off:
            each.loop.stop()
        await self._hand_over.stop()
        if self.parts.old_messages is not None:
            await self.parts.old_messages.stop()
        self.parts.message_queries.stop()
        if self._watchdog is not None:
            self._watchdog.cancel()
            await asyncio.gather(self._watchdog, return_exceptions=True)
        with contextlib.suppress(StoreError, OSError):  # the snapshot fails too then, and its error is logged
            self.journaled.minutes.note(self.minutes.roll(closing=True))
        for each in self.parts.put_off:
            try:
                each.pending.save_at_once()
            except (StoreError, OSError) as error:
                log.error(
                    "what is put off could not be written to its file; the next start reads more of the log",
                    kind=each.pending.name,
                    error=str(error),
                )
        try:
            self.journal.write_snapshot()
        except (StoreError, OSError) as error:
            log.error(
                "the last snapshot could not be written; nothing that was answered as done is lost, and the next "
                "start reads the journal from the snapshot before it",
                error=str(error),
            )

    def _first_offset(self, topic: str, queue_id: int) -> int:
        """Where a new group begins: at the start of a queue that never lost its front and whose log fits
        memory, else at its end (the original's `initPopOffsetByCheckMsgInMem`); of a retry topic and a lite topic at the
        start."""
        index = self._store.index
        if topic.startswith((RETRY_PREFIX, LITE_PREFIX)):
            return index.min_offset(topic, queue_id)
        by_memory = self._config.broker.init_pop_offset_by_check_msg_in_mem
        if by_memory and index.min_offset(topic, queue_id) == index.begin(topic, queue_id):
            ratio = self._config.store.access_message_in_memory_max_ratio / 100
            memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if self._store.max_offset - self._store.min_offset <= memory * ratio:
                return 0
        return index.max_offset(topic, queue_id)

    async def _retain(self) -> None:
        await self.retention.run_once()

    async def _save_put_off(self) -> None:
        for each in self.parts.put_off:
            await each.pending.save_if_due()

    async def _check(self) -> None:
        await self.self_check.run_once()

    def _housekeep(self) -> None:
        for session in self.clients.expire():
            if session.group:
                self.parts.redelivery.release(session.client_id, session.group)
        self.administration.statistics.sample(monotonic_ms())
        self.administration.runtime.sample(monotonic_ms())
        self.journaled.minutes.note(self.minutes.roll())  # raises what the log does not take
