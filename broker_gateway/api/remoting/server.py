"""The remoting endpoint of a broker: one set of processors on `listenPort` and on the fast port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from broker_gateway.api.extensions import Extensions
from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.broker_requests import BrokerRequests
from broker_gateway.api.remoting.bulkheads import admitted, bulkhead_of
from broker_gateway.api.remoting.client_requests import ClientRequests
from broker_gateway.api.remoting.concurrency_limit import ConcurrencyLimit
from broker_gateway.api.remoting.extended import extended
from broker_gateway.api.remoting.group_requests import GroupRequests
from broker_gateway.api.remoting.lite_requests import LiteRequests
from broker_gateway.api.remoting.outcomes import translated
from broker_gateway.api.remoting.ports import Ports
from broker_gateway.api.remoting.tables import Tables
from broker_gateway.api.remoting.topic_requests import TopicRequests
from broker_gateway.auth.policy import Policy
from broker_gateway.auth.remoting_calls import authorized
from broker_gateway.auth.requests import BROKER_REQUESTS
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.admission import Admission
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processor, Processors
from broker_gateway.transport.remoting.server import RemotingServer

MAX_CONNECTIONS = 5000
WALKS = 2
"""Requests that look at every queue of topics, at a time."""
MAX_WALKS_WAITING = 1024


class Binds(Protocol):
    """Has requests of its own to serve."""

    def bind(self, processors: Processors) -> None: ...


class RemotingEndpoint:
    """Serves administration and what `others` bind: `extensions` first, then the bulkhead, then the policy. Everything
    else is answered REQUEST_CODE_NOT_SUPPORTED."""

    def __init__(
        self,
        config: GatewayConfig,
        administration: Administration,
        admission: Admission,
        extensions: Extensions,
        others: Sequence[Binds],
        policy: Policy,
        slots: ConnectionSlots | None = None,
    ) -> None:
        self._admin = administration
        behind_policy = authorized(policy, BROKER_REQUESTS)

        def around(code: int, processor: Processor) -> Processor:
            return extended(
                extensions,
                code,
                admitted(bulkhead_of(admission, code), behind_policy(code, translated(processor))),
            )

        processors = Processors(around=around)
        for each in others:
            each.bind(processors)
        tables, walks = Tables(), ConcurrencyLimit(WALKS, MAX_WALKS_WAITING, "the state of queues")
        TopicRequests(administration, tables, walks).bind(processors)
        GroupRequests(administration, tables, walks).bind(processors)
        LiteRequests(administration, walks).bind(processors)
        BrokerRequests(administration, policy).bind(processors)
        ClientRequests(administration).bind(processors)
        self._server = RemotingServer(
            processors,
            ConnectionOptions(idle_s=float(config.server.server_channel_max_idle_time_seconds)),
            on_close=self._closed,
            max_connections=MAX_CONNECTIONS,
            slots=slots,
        )

    @property
    def connections(self) -> int:
        return self._server.connections

    async def start(self, ports: Ports) -> None:
        """Listens on them. Raises StartError."""
        ports.listen()
        for each in ports.sockets:
            await self._server.start_on(each)

    async def stop(self) -> None:
        await self._server.stop()

    def _closed(self, connection: Connection) -> None:
        self._admin.connections.closed(connection)
