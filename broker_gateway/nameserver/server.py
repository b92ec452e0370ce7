"""The name server put together: requests over remoting, the look for silent brokers, news to brokers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Hashable
from functools import partial

import structlog

from broker_gateway.auth.policy import OWN_MACHINE, LoopbackPolicy, Policy
from broker_gateway.auth.remoting_calls import authorized
from broker_gateway.auth.requests import NAME_SERVER_REQUESTS
from broker_gateway.nameserver.admin_requests import AdminRequests
from broker_gateway.nameserver.broker_requests import BrokerRequests
from broker_gateway.nameserver.brokers import BrokerKey, MinBrokerIdChange
from broker_gateway.nameserver.client_requests import ClientRequests
from broker_gateway.nameserver.config import NameServerConfig
from broker_gateway.nameserver.state import State
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RemotingError
from broker_gateway.runtime.connection_slots import ConnectionSlots
from broker_gateway.runtime.peer_log import PeerLog
from broker_gateway.runtime.ports import Wanted
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import Connection, ConnectionOptions, Processors
from broker_gateway.transport.remoting.server import SPARE, RemotingServer

log = structlog.get_logger(__name__)

_NOTIFY_TIMEOUT_S = 0.3
_PAUSE_MS = 1000
"""A wait that takes this much too long: the process stood still, and signs of life wait in its sockets."""
_MAX_NOTIFICATIONS = 1000
_SILENT_LINES = 20
"""Of brokers of one host, in a minute."""


class NameServer:
    """One name server, as a process or within a broker's, whose `slots` it shares and whose options for its port
    `wanted` names; `policy` decides on its requests. Raises HostError for an unusable KV file."""

    def __init__(
        self,
        config: NameServerConfig,
        slots: ConnectionSlots | None = None,
        wanted: Wanted | None = None,
        policy: Policy | None = None,
    ) -> None:
        server = config.server
        self._wanted = wanted or Wanted("listenPort", server.listen_port, "bindAddress", server.bind_address)
        self.state = State(config, _monotonic_ms, self._notify)
        policy = policy or LoopbackPolicy(
            lambda: self.state.config.lake.lake_remote_admin, OWN_MACHINE.format("name server")
        )
        processors = Processors(around=authorized(policy, NAME_SERVER_REQUESTS))
        self._broker_requests = BrokerRequests(self.state)
        self._broker_requests.bind(processors)
        ClientRequests(self.state).bind(processors)
        AdminRequests(self.state).bind(processors)
        idle_s = float(config.server.server_channel_max_idle_time_seconds)
        most = config.lake.lake_max_connections
        self._server = RemotingServer(
            processors,
            ConnectionOptions(idle_s=idle_s),
            on_close=self._connection_closed,
            max_connections=most,
            slots=slots
            or ConnectionSlots(lambda: most + SPARE, config.lake.lake_max_connections_per_address),
        )
        self._client = RemotingClient(one_way_limit=config.server.server_oneway_semaphore_value)
        self._peer_log = PeerLog()
        self._scan: asyncio.Task[None] | None = None
        self._notifications: set[asyncio.Task[None]] = set()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def connections(self) -> int:
        return self._server.connections

    async def start(self) -> None:
        """Listens. Raises StartError."""
        options = self.state.config.server
        try:
            await self._server.start(
                options.bind_address, options.listen_port, backlog=options.server_socket_backlog
            )
        except OSError as error:
            raise self._wanted.refused(error) from error
        if options.listen_port == 0:
            self.state.config = self.state.config.changed({"listenPort": str(self.port)})
        self._scan = asyncio.create_task(self._look_for_silent(), name="scan not active broker")

    async def stop(self) -> None:
        options = self.state.config.server
        if self._scan is not None:
            self._scan.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._scan
        await self._server.stop(
            options.shutdown_wait_time_seconds if options.enable_shutdown_gracefully else 1.0
        )
        self._broker_requests.close()
        self.state.lost_brokers.stop()
        for task in list(self._notifications):
            task.cancel()
        await self._client.close()

    async def _look_for_silent(self) -> None:
        """Every interval. When this process stood still, brokers get that time, and are heard before the next look."""
        clock = self.state.clock
        looked = clock()
        while True:
            began = clock()
            next_look = looked + self.state.config.namesrv.scan_not_active_broker_interval
            wait = min(max(next_look - began, 0), _PAUSE_MS)
            await asyncio.sleep(wait / 1000)
            now = clock()
            late = now - began - wait
            if late > _PAUSE_MS:
                log.warning("the name server stood still; brokers get that time", ms=late)
                self.state.routes.live.prolong(late)
                looked = now
            elif now >= next_look:
                looked = now
                self._unregister_silent()

    def _unregister_silent(self) -> None:
        for key, connection in self.state.routes.live.expired():
            self.state.lost_brokers.silent(key, partial(self._end_silent, key, connection))

    def _end_silent(self, key: BrokerKey, connection: Hashable) -> None:
        cluster, address = key
        self._peer_log.warning(
            self.state.routes.live.registered_from(cluster, address),
            "a broker is silent; it is unregistered",
            _SILENT_LINES,
            cluster=cluster,
            address=address,
        )
        if isinstance(connection, Connection):
            connection.close("its broker is silent", at_once=True)

    def _connection_closed(self, connection: Connection) -> None:
        self.state.lost_brokers.connection_closed(connection)

    def _notify(self, change: MinBrokerIdChange) -> None:
        told = {
            "minBrokerId": str(change.min_broker_id),
            "minBrokerAddr": change.min_broker_addr,
            "offlineBrokerAddr": change.offline_broker_addr,
            "haBrokerAddr": change.ha_broker_addr,
        }
        log.info("least broker id changed", broker=change.broker_name, broker_id=change.min_broker_id)
        request = Command(
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
            {name: value for name, value in told.items() if value is not None},
        )
        for address in change.notify:
            if len(self._notifications) >= _MAX_NOTIFICATIONS:
                log.error("too many notifications wait; one is dropped", address=address)
                return
            task = asyncio.get_running_loop().create_task(self._tell(address, request))
            self._notifications.add(task)
            task.add_done_callback(self._notifications.discard)

    async def _tell(self, address: str, request: Command) -> None:
        try:
            await self._client.invoke_one_way(address, request, _NOTIFY_TIMEOUT_S)
        except RemotingError as error:
            log.warning("a broker could not be told", address=address, error=str(error))


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
