"""The administration of one broker: its parts, put together."""

from __future__ import annotations

from broker_gateway.api.remoting.administration.configuration import OptionAdministration
from broker_gateway.api.remoting.administration.messages import MessageQueries
from broker_gateway.api.remoting.administration.queue_entries import QueueEntries
from broker_gateway.api.remoting.administration.runtime import RuntimeInfo
from broker_gateway.api.remoting.administration.shown_options import ShownOptions
from broker_gateway.api.remoting.administration.topics import TopicAdministration
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.reload import Configuration
from broker_gateway.maintenance.retention import Retention
from broker_gateway.messaging.core import Core
from broker_gateway.messaging.factory import Messaging
from broker_gateway.metadata.data_version import DataVersion
from broker_gateway.metadata.system_topics import system_topic_names
from broker_gateway.observability.broker_statistics import BrokerStatistics
from broker_gateway.observability.dispatch_lag import DispatchLag
from broker_gateway.observability.statistics import Statistics
from broker_gateway.runtime.clock import monotonic_ms, now_ms
from broker_gateway.transport.remoting.address import written_address


class Administration:
    """What remoting requests call."""

    def __init__(
        self,
        configuration: Configuration,
        core: Core,
        messaging: Messaging,
        days: BrokerStatistics,
        dispatch_lag: DispatchLag,
        retention: Retention,
    ) -> None:
        store, catalog, metrics = core.store, core.catalog, core.metrics
        config = configuration.current
        self.broker = config.broker.broker_name
        self.address = written_address(config.broker.broker_ip1, config.broker.listen_port)
        self.system_topics = system_topic_names(config)
        self.filters_properties = config.broker.enable_property_filter
        """Whether pulls may have SQL filters."""
        self._store = store
        self._catalog = catalog
        self.retention = retention
        self.topics = TopicAdministration(config, catalog, messaging.topics)
        self.groups = messaging.groups
        self.offsets = messaging.offsets
        self.offset_changes = messaging.offset_changes
        self.messages = MessageQueries(store, messaging.message_search)
        self.queues = QueueEntries(store, self.offsets)
        self.progress = messaging.progress
        self.connections = messaging.connections
        self.clients = messaging.clients
        self.client_commands = messaging.client_commands
        self.lite = messaging.lite_reports
        self.client_timeout_s = float(config.proxy.grpc_proxy_relay_request_timeout_in_seconds)
        """How long a gRPC client has for an answer."""
        self.statistics = Statistics(metrics, config.broker.broker_cluster_name, monotonic_ms())
        options = ShownOptions(configuration)
        self.runtime = RuntimeInfo(
            configuration, options, core, self.statistics, days, messaging.admission, dispatch_lag
        )
        self.options = OptionAdministration(configuration, options, now_ms())

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        self.filters_properties = config.broker.enable_property_filter
        self.topics.configure(config)

    @property
    def log_end(self) -> int:
        return self._store.max_offset

    def ordered(self, group: str) -> bool:
        """Whether a group consumes in order."""
        known = self._catalog.group(group)
        return known is not None and known.fifo

    def topic_version(self) -> DataVersion:
        return self._catalog.topics_version

    def group_version(self) -> DataVersion:
        return self._catalog.groups_version
