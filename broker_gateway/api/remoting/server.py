"""The front door for remoting: one set of processors on `listenPort` and on the fast port."""

from __future__ import annotations

from broker_gateway.api.extensions import Extensions
from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.api.remoting.broker_requests import BrokerRequests
from broker_gateway.api.remoting.extended import extended
from broker_gateway.api.remoting.gate import Gate
from broker_gateway.api.remoting.group_requests import GroupRequests
from broker_gateway.api.remoting.lanes import admitted, lane_of
from broker_gateway.api.remoting.ports import Ports
from broker_gateway.api.remoting.tables import Tables
from broker_gateway.api.remoting.topic_requests import TopicRequests
from broker_gateway.auth.policy import OWN_MACHINE, Owners
from broker_gateway.auth.remoting_calls import guard
from broker_gateway.auth.requests import BROKER_REQUESTS
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.messaging.admission import Admission
from broker_gateway.remoting.connection import Connection, ConnectionOptions, Processors
from broker_gateway.remoting.server import RemotingServer
from broker_gateway.runtime.places import Places

MAX_CONNECTIONS = 5000
WALKS = 2
"""Requests that look at every queue of topics, at a time."""
MAX_WALKS_WAITING = 1024


class FrontDoor:
    """Serves administration, and what others have registered in `processors`, each within its lane and with
    `extensions` around it. Everything else is answered REQUEST_CODE_NOT_SUPPORTED."""

    def __init__(
        self,
        config: GatewayConfig,
        administration: Administration,
        admission: Admission,
        extensions: Extensions,
        processors: Processors,
        places: Places | None = None,
    ) -> None:
        self._admin = administration
        remote = config.lake.lake_remote_admin
        policy = Owners(lambda: remote, OWN_MACHINE.format("broker"))
        tables, walks = Tables(), Gate(WALKS, MAX_WALKS_WAITING, "the state of queues")
        TopicRequests(administration, tables, walks).bind(processors)
        GroupRequests(administration, tables, walks).bind(processors)
        BrokerRequests(administration, policy).bind(processors)
        guard(processors, policy, BROKER_REQUESTS)
        for code, processor in processors.by_code.items():
            within = admitted(lane_of(admission, code), processor)
            processors.by_code[code] = extended(extensions, code, within)
        self._server = RemotingServer(
            processors,
            ConnectionOptions(idle_s=float(config.server.server_channel_max_idle_time_seconds)),
            on_close=self._closed,
            max_connections=MAX_CONNECTIONS,
            places=places,
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
