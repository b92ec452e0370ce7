"""Registration of a broker with all its name servers, from its start to its stop.

Owns the list of name servers (`namesrvAddr`, else the address server's) and a registrar for each. Without name servers
nothing is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from broker_gateway.config import GatewayConfig
from broker_gateway.metadata.catalog import Catalog
from broker_gateway.registration.address_server import AddressServerError, fetch_name_servers
from broker_gateway.registration.book import Book
from broker_gateway.registration.cluster import Cluster
from broker_gateway.registration.options import name_server_addresses
from broker_gateway.registration.registrar import Registrar
from broker_gateway.registration.requests import Identity
from broker_gateway.remoting.client import RemotingClient
from broker_gateway.remoting.codes import RequestCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.connection import Connection, Processors
from broker_gateway.remoting.fields import Fields

log = structlog.get_logger(__name__)


class Registration:
    """`cluster` is what the name servers say of the others. Everything runs on the event loop."""

    def __init__(self, config: GatewayConfig, catalog: Catalog) -> None:
        self._config = config
        self._catalog = catalog
        options = config.registration
        self.cluster = Cluster(config.broker.broker_name, options.poll_name_server_interval / 1000)
        self._name_servers: list[str] = []
        self._registrars: dict[str, Registrar] = {}
        self._client: RemotingClient | None = None
        self._book: Book | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._address_server_answers = True
        self.min_broker_id = 0
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
        if not self.is_wanted:
            return
        broker, options = self._config.broker, self._config.registration
        host = f"[{broker.broker_ip1}]" if ":" in broker.broker_ip1 else broker.broker_ip1
        ha_port = self._config.store.ha_listen_port or listen_port + 1
        identity = Identity(
            broker.broker_cluster_name,
            broker.broker_name,
            f"{host}:{listen_port}",
            f"{host}:{ha_port}",
        )
        self._client = RemotingClient(on_lost=self._lost)
        self._book = Book(self._config, self._catalog, identity)
        configured = name_server_addresses(broker.namesrv_addr)
        if configured or own_name_servers:
            self._use([*own_name_servers, *configured])
        else:
            self._tasks.append(asyncio.create_task(self._ask_address_server(), name="address server"))
        if options.enable_slave_acting_master:
            self._tasks.append(asyncio.create_task(self._send_heartbeats(), name="broker heartbeat"))
        self.cluster.start(lambda: self._name_servers, identity.address)

    async def stop(self) -> None:
        """Unregisters everywhere at the same time; bounded by the time one name server gets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.stop() for each in self._registrars.values()))
        self._registrars.clear()
        await self.cluster.stop()
        if self._client is not None:
            await self._client.close()

    def topic_changed(self, name: str) -> None:
        """A topic was made, changed or deleted: the name servers are told."""
        for registrar in self._registrars.values():
            registrar.changed(name)

    def permission_changed(self, permission: int) -> None:
        """Takes `brokerPermission`: every topic is registered anew when it is another one."""
        if self._book is not None and self._book.permit(permission):
            for registrar in self._registrars.values():
                registrar.register_anew()

    def _lost(self, address: str) -> None:
        if (registrar := self._registrars.get(address)) is not None:
            registrar.lost()

    def _use(self, addresses: Sequence[str]) -> None:
        """Registers with these name servers; those that are not listed any more are left."""
        assert self._client is not None
        assert self._book is not None
        self._name_servers = list(dict.fromkeys(addresses))
        for address in self._registrars.keys() - set(self._name_servers):
            left = self._registrars.pop(address)
            self._tasks.append(asyncio.create_task(left.stop(), name=f"leave {address}"))
        for address in self._name_servers:
            if address not in self._registrars:
                registrar = Registrar(address, self._client, self._book, self._config.registration)
                self._registrars[address] = registrar
                registrar.start()

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
                if found != self._name_servers:
                    log.info("name servers", before=self._name_servers, now=found)
                    self._tasks = [task for task in self._tasks if not task.done()]
                    self._use(found)
            await asyncio.sleep(self._config.registration.fetch_namesrv_addr_interval / 1000)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.gather(*(each.heartbeat() for each in self._registrars.values()))
            await asyncio.sleep(self._config.registration.broker_heartbeat_interval / 1000)

    def _min_broker_id_changed(self, connection: Connection, request: Command) -> Command:
        """A master stays the least whatever comes or goes behind it: the news is kept for those who look."""
        fields = Fields(request.ext_fields)
        least = fields.optional_long("minBrokerId")
        if least is not None and least >= 0:
            self.min_broker_id = least
        log.info(
            "brokers of this name changed",
            min_broker_id=least,
            min_broker_address=(fields.optional_text("minBrokerAddr") or "")[:300],
            offline=(fields.optional_text("offlineBrokerAddr") or "")[:300],
            told_by=connection.peer,
        )
        return request.reply()
