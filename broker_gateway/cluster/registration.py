"""Registration of a broker with all its name servers, from its start to its stop.

Owns the list of name servers (`namesrvAddr`, else the address server's) and a registrar for each. Without name servers
nothing is done. A list that is changed while the broker runs counts at once: the broker leaves those that are not in it
any more. Their host names are looked up again every `updateNameServerAddrPeriod`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import structlog

from broker_gateway.cluster.address_server import AddressServerError, fetch_name_servers
from broker_gateway.cluster.outgoing import outgoing
from broker_gateway.cluster.peer_routes import PeerRoutes
from broker_gateway.cluster.registered_topics import RegisteredTopics
from broker_gateway.cluster.registrar import Registrar
from broker_gateway.cluster.requests import Identity
from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.config.registration import name_server_addresses
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.fields import Fields
from broker_gateway.runtime.scheduled_tasks import ScheduledTasks
from broker_gateway.transport.remoting.address import parse_address
from broker_gateway.transport.remoting.client import RemotingClient
from broker_gateway.transport.remoting.connection import Connection, Processors

log = structlog.get_logger(__name__)

TASK = "name-servers"
"""The scheduled task that looks up name servers."""


class Registration:
    """`cluster` is what the name servers say of the others. Everything runs on the event loop."""

    def __init__(self, config: GatewayConfig, catalog: Catalog, scheduled: ScheduledTasks) -> None:
        self._config = config
        self._catalog = catalog
        self._scheduled = scheduled
        self.peer_routes = PeerRoutes(config.broker.broker_name, config.registration)
        self._own: list[str] = []
        self._name_servers: list[str] = []
        self._registrars: dict[str, Registrar] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        self._asking: asyncio.Task[None] | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._listen_port = 0
        self._client: RemotingClient | None = None
        self._registered_topics: RegisteredTopics | None = None
        self._address_server_answers = True
        """Least id of the brokers with this one's name, as name servers say."""

    @property
    def is_wanted(self) -> bool:
        """Whether there are name servers to register with, or may be."""
        options = self._config.registration
        return bool(
            self._config.broker.namesrv_addr
            or options.fetch_namesrv_addr_by_address_server
            or options.lake_with_namesrv
        )

    def bind(self, processors: Processors) -> None:
        """What name servers ask on our own port."""
        processors.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self._min_broker_id_changed)

    def start(self, listen_port: int, own_name_servers: Sequence[str] = ()) -> None:
        """Registers from now on, with this port. `own_name_servers` run in this process."""
        self._listen_port = listen_port
        self._own = list(own_name_servers)
        self._follow()

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs: its permission, and the list of name servers."""
        before, self._config = self._config.broker.namesrv_addr, config
        if self._registered_topics is not None and self._registered_topics.permit(
            config.broker.broker_permission
        ):
            for registrar in self._registrars.values():
                registrar.register_anew()
        if self._listen_port and config.broker.namesrv_addr != before:
            self._follow()

    async def stop(self) -> None:
        """Unregisters everywhere at the same time; bounded by the time one name server gets, twice where the broker
        was leaving it already. Does nothing the second time."""
        self._listen_port = 0
        self._scheduled.remove(TASK)
        running = [task for task in (self._asking, self._heartbeats) if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._use([])
        await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        await self.peer_routes.stop()
        if self._client is not None:
            await self._client.close()

    def topic_changed(self, name: str) -> None:
        """A topic was made, changed or deleted: the name servers are told."""
        for registrar in self._registrars.values():
            registrar.changed(name)

    def _follow(self) -> None:
        """Goes by the list that is configured, else by the address server's."""
        if self._client is None:
            if not self.is_wanted:
                return
            self._begin()
        options = self._config.registration
        configured = name_server_addresses(self._config.broker.namesrv_addr)
        self._scheduled.remove(TASK)
        if configured:
            period_s = options.update_name_server_addr_period / 1000
            self._scheduled.add(TASK, period_s, self._look_up)
        listed = [*self._own, *configured]
        ask = not listed and options.fetch_namesrv_addr_by_address_server
        if not ask:
            if self._asking is not None:
                self._asking.cancel()
                self._asking = None
            self._use(listed)
        elif self._asking is None:  # until it answers, the broker stays where it is
            self._asking = asyncio.create_task(self._ask_address_server(), name="address server")

    def _begin(self) -> None:
        broker, options = self._config.broker, self._config.registration
        host = f"[{broker.broker_ip1}]" if ":" in broker.broker_ip1 else broker.broker_ip1
        ha_port = self._config.store.ha_listen_port or self._listen_port + 1
        identity = Identity(
            broker.broker_cluster_name,
            broker.broker_name,
            f"{host}:{self._listen_port}",
            f"{host}:{ha_port}",
        )
        self._client = outgoing(options, self._lost)
        self._registered_topics = RegisteredTopics(self._config, self._catalog, identity)
        if options.enable_slave_acting_master:
            self._heartbeats = asyncio.create_task(self._send_heartbeats(), name="broker heartbeat")
        self.peer_routes.start(lambda: self._name_servers, identity.address)

    def _lost(self, address: str) -> None:
        if (registrar := self._registrars.get(address)) is not None:
            registrar.lost()

    def _use(self, addresses: Sequence[str]) -> None:
        """Registers with these name servers; those that are not listed any more are left."""
        before, self._name_servers = self._name_servers, list(dict.fromkeys(addresses))
        if before and before != self._name_servers and self._listen_port:
            log.info("name servers", before=before, now=self._name_servers)
        for address in self._registrars.keys() - set(self._name_servers):
            self._leave(self._registrars.pop(address))
        for address in self._name_servers:
            if address not in self._registrars:
                assert self._client is not None
                assert self._registered_topics is not None
                registrar = Registrar(
                    address, self._client, self._registered_topics, self._config.registration
                )
                self._registrars[address] = registrar
                registrar.start(self._leaving.get(address))

    def _leave(self, registrar: Registrar) -> None:
        """Unregisters there; whoever registers there again waits for it."""
        address = registrar.address
        earlier = self._leaving.get(address)

        async def leave() -> None:
            if earlier is not None:
                await asyncio.wait([earlier])
            await registrar.stop()

        def left(done: asyncio.Task[None]) -> None:
            if self._leaving.get(address) is done:
                del self._leaving[address]

        task = self._leaving[address] = asyncio.create_task(leave(), name=f"leave {address}")
        task.add_done_callback(left)

    async def _look_up(self) -> None:
        """Goes to name servers anew whose host name means another address by now. Raises OSError, which names those
        that cannot be looked up."""
        assert self._client is not None
        failures = []
        for address, registrar in list(self._registrars.items()):
            connected = self._client.peer_host(address)
            if connected is None:
                continue  # the next attempt looks it up
            try:
                found = await _addresses_of(address)
            except (OSError, UnicodeError) as error:
                failures.append(f"{address}: {error}")
                continue
            if connected not in found and self._registrars.get(address) is registrar:
                log.info("a name server moved", name_server=address, before=connected, now=found)
                self._client.disconnect(address)
                self.peer_routes.disconnect(address)
                registrar.register_anew()
        if failures:
            raise OSError("; ".join(failures))

    async def _ask_address_server(self) -> None:
        while True:
            try:
                found = await fetch_name_servers(self._config.registration)
            except AddressServerError as error:
                if self._address_server_answers:
                    log.warning("the address server gives no name servers", error=str(error))
                self._address_server_answers = False
            else:
                self._address_server_answers = True
                self._use(found)
            await asyncio.sleep(self._config.registration.fetch_namesrv_addr_interval / 1000)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.gather(*(each.heartbeat() for each in self._registrars.values()))
            await asyncio.sleep(self._config.registration.broker_heartbeat_interval / 1000)

    def _min_broker_id_changed(self, connection: Connection, request: Command) -> Command:
        """A master stays the least whatever comes or goes behind it: the news is logged."""
        fields = Fields(request.ext_fields)
        least = fields.optional_long("minBrokerId")
        log.info(
            "brokers of this name changed",
            min_broker_id=least,
            min_broker_address=(fields.optional_text("minBrokerAddr") or "")[:300],
            offline=(fields.optional_text("offlineBrokerAddr") or "")[:300],
            told_by=connection.peer,
        )
        return request.reply()


async def _addresses_of(address: str) -> list[str]:
    """The numeric addresses of the host in `host:port`. Raises OSError or UnicodeError."""
    host, port = parse_address(address)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(each[4][0]) for each in found]
