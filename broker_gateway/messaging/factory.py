"""Puts together what calls do, for one broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker_gateway.cluster.hand_over import HandOver
from broker_gateway.cluster.peer_routes import PeerRoutes
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.reload import Configuration
from broker_gateway.deferred.timers import Timers
from broker_gateway.lake.erasures import LakeErasures
from broker_gateway.lake.message_search import LakeSearch
from broker_gateway.lake.messages import LakeMessages
from broker_gateway.lake.reader import Lake
from broker_gateway.messaging.admission import Admission
from broker_gateway.messaging.attempts import Attempts
from broker_gateway.messaging.client_commands import ClientCommands
from broker_gateway.messaging.clients import ClientRegistry
from broker_gateway.messaging.connections import Connections
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.dead_letters import DeadLetterMover
from broker_gateway.messaging.delays import Delays
from broker_gateway.messaging.erasing import Erasing
from broker_gateway.messaging.group_progress import GroupProgress
from broker_gateway.messaging.groups import Groups
from broker_gateway.messaging.lite_peers import LitePeers
from broker_gateway.messaging.lite_reports import LiteReports
from broker_gateway.messaging.lite_subscriptions import LiteSubscriptions
from broker_gateway.messaging.lite_topics import LiteTopics
from broker_gateway.messaging.long_polling import LongPolling
from broker_gateway.messaging.message_queries import MessageQueries
from broker_gateway.messaging.message_search import MessageSearch
from broker_gateway.messaging.offset_changes import OffsetChanges
from broker_gateway.messaging.offsets import Offsets
from broker_gateway.messaging.old_messages import OldMessages
from broker_gateway.messaging.ordered_sends import OrderedSends
from broker_gateway.messaging.placed_brokers import PlacedBrokers
from broker_gateway.messaging.poll import Polls
from broker_gateway.messaging.produce import Producer
from broker_gateway.messaging.pull import Pulls
from broker_gateway.messaging.redelivery import Redelivery
from broker_gateway.messaging.resources import Resources
from broker_gateway.messaging.routes import Routes
from broker_gateway.messaging.searched_queues import SearchedQueues
from broker_gateway.messaging.settlement import Settlement
from broker_gateway.messaging.stored_message import MessageReader
from broker_gateway.messaging.subscriptions import Subscriptions
from broker_gateway.messaging.take import Taker
from broker_gateway.messaging.topics import Topics
from broker_gateway.messaging.transactions import Transactions
from broker_gateway.metadata.peers import Peers
from store.delay_levels import parse_delay_levels


@dataclass(frozen=True, slots=True)
class Messaging:
    """What the edges call."""

    admission: Admission
    clients: ClientRegistry
    client_commands: ClientCommands
    resources: Resources
    producer: Producer
    polls: Polls
    long_polling: LongPolling
    pulls: Pulls
    redelivery: Redelivery
    settlement: Settlement
    offsets: Offsets
    offset_changes: OffsetChanges
    topics: Topics
    groups: Groups
    connections: Connections
    routes: Routes
    ordered_sends: OrderedSends
    timers: Timers
    delays: Delays
    transactions: Transactions
    lite_topics: LiteTopics
    lite_subscriptions: LiteSubscriptions
    lite_peers: LitePeers
    lite_reports: LiteReports
    old_messages: OldMessages | None
    """What only the lake has; None without a lake."""
    message_search: MessageSearch
    message_queries: MessageQueries
    progress: GroupProgress
    subscriptions: Subscriptions
    erasing: Erasing

    @property
    def put_off(self) -> Sequence[Timers | Transactions]:
        """What keeps messages until something is due."""
        return (self.timers, self.transactions)

    def listen(self, configuration: Configuration) -> None:
        """Subscribes the parts to changes of options."""
        parts = (
            self.admission,
            self.producer,
            self.polls,
            self.long_polling,
            self.resources,
            self.routes,
            self.delays,
            self.transactions,
            self.lite_topics,
            self.lite_subscriptions,
            self.lite_reports,
            self.message_search,
            self.erasing,
        )
        for part in parts:
            configuration.on_change(part.configure)


def make_messaging(
    config: GatewayConfig,
    core: Core,
    peers: Peers,
    peer_routes: PeerRoutes,
    hand_over: HandOver,
    lake: Lake | None = None,
) -> Messaging:
    """The parts, connected."""
    admission = Admission(config, core.tick)
    clients = ClientRegistry(config.lake.lake_max_clients, config.lake.lake_max_share_per_address)
    commands = ClientCommands(clients)
    resources = Resources(config, core.catalog)
    old = in_lake = None
    if lake is not None:
        store = core.store
        erased = LakeErasures(lake, store.broker, core.erasures.of)
        in_lake = LakeSearch(lake, store.broker, erased)

        def needed() -> tuple[str, int]:
            own = (
                store.min_offset > store.identity.own_from
            )  # else it was the former log that had what is gone
            return store.log_id, store.min_offset if own else 0

        read = LakeMessages(lake, store.broker, needed, erased)
        most_bytes, percent = config.lake.lake_cold_read_bytes, config.lake.lake_max_share_per_address
        old = OldMessages(read, store.index, most_bytes, core.came_back, core.metrics, percent)
    messages = MessageReader(core.store, old)
    mover = DeadLetterMover(core, resources, messages)
    redelivery = Redelivery(core, clients, mover)
    taker = Taker(core, SearchedQueues(core, resources), redelivery, messages)
    attempts = Attempts(core, messages)
    offsets = Offsets(core, resources, old)
    polls = Polls(config, resources, clients)
    connections = Connections(clients, config.lake.lake_max_share_per_address)
    search = MessageSearch(config, core.store)
    routes = Routes(config, resources, peers, peer_routes)
    producer = Producer(config, core, resources, admission.send)
    levels_ms = parse_delay_levels(config.store.message_delay_level)
    lite_topics = LiteTopics(config, core)
    subscriptions = LiteSubscriptions(
        config, core, resources, clients, commands, lite_topics, with_lake=old is not None
    )
    ordered = OrderedSends(config, routes, hand_over, core.catalog.topics, PlacedBrokers(core.store.root))
    timers = Timers(core.store, core.tick, core.pace, core.taken_over, levels_ms)
    transactions = Transactions(config, core, producer, clients, commands)
    erasing = Erasing(
        config, core, (timers, transactions), lake, old.forget if old is not None else lambda: None
    )
    return Messaging(
        admission,
        clients,
        commands,
        resources,
        producer,
        polls,
        LongPolling(config, core, taker, attempts, admission.pull),
        Pulls(config, core, resources, offsets, polls, messages),
        redelivery,
        Settlement(config, core, resources, clients, mover),
        offsets,
        OffsetChanges(core, offsets),
        Topics(config, core),
        Groups(core),
        connections,
        routes,
        ordered,
        timers,
        Delays(config, timers, producer),
        transactions,
        lite_topics,
        subscriptions,
        LitePeers(routes, hand_over),
        LiteReports(config, core, lite_topics, subscriptions, ordered),
        old,
        search,
        MessageQueries(core, search, in_lake),
        GroupProgress(core, offsets),
        Subscriptions(core, connections),
        erasing,
    )
