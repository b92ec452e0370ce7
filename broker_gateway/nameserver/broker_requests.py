"""Requests of brokers: registration and signs of life."""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from broker_gateway.nameserver.brokers import Registration
from broker_gateway.nameserver.claims import Claim, Peer, check_claim
from broker_gateway.nameserver.kv_config import ORDER_TOPIC_CONFIG
from broker_gateway.nameserver.route_queries import broker_member_group
from broker_gateway.nameserver.state import State
from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.route import TopicRouteData
from broker_gateway.protocol.body.topic_config import DataVersion
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import ConnectError, RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.transport.remoting.address import parse_address
from broker_gateway.transport.remoting.connection import Answer, Connection, Processors
from broker_gateway.transport.remoting.trusted_hosts import trusted_hosts

ZONE_NAME = "__ZONE_NAME"
_LARGE_BODY = 32 << 10
"""Bytes, unpacked, that are read within a few ms."""
_MAX_DATA_VERSION = 4 << 10
"""Bytes; one has 60."""
_T = TypeVar("_T")


class BrokerRequests:
    """Answers as the original's DefaultRequestProcessor."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._reader = ThreadPoolExecutor(1, "registration")

    def close(self) -> None:
        """Registrations that are waiting to be read are given up."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def bind(self, processors: Processors) -> None:
        for code, processor in {
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_broker_member_group,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
        }.items():
            processors.register(code, processor)

    def register_broker(self, connection: Connection, request: Command) -> Answer:
        check = Fields(request.ext_fields).small("bodyCrc32")
        if check != 0 and check != zlib.crc32(request.body) & 0x7FFFFFFF:
            raise RequestError("crc32 not match")
        if is_large(request.body):
            return self._register_large(connection, request)
        return self._register(connection, request, RegisterBrokerBody.decode(request.body, request.version))

    async def _register_large(self, connection: Connection, request: Command) -> Command:
        body = await self._read(lambda: RegisterBrokerBody.decode(request.body, request.version))
        if not connection.is_open:
            raise RequestError("the broker's connection is closed; its registration is not taken")
        return self._register(connection, request, body)

    async def _read(self, decode: Callable[[], _T]) -> _T:
        """Reads a body on a thread, one at a time, so that others are served meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, decode)

    def _register(self, connection: Connection, request: Command, body: RegisterBrokerBody) -> Command:
        fields = Fields(request.ext_fields)
        timeout_ms = fields.optional_long("heartbeatTimeoutMillis")
        if timeout_ms is not None and timeout_ms <= 0:
            raise RequestError(f"heartbeatTimeoutMillis {timeout_ms}: ms above 0 are allowed")
        given = Registration(
            cluster_name=fields.name("clusterName"),
            broker_addr=_address(fields, "brokerAddr"),
            broker_name=fields.name("brokerName"),
            broker_id=fields.long("brokerId"),
            ha_server_addr=fields.optional_name("haServerAddr", 300) or "",
            body=body,
            zone_name=fields.optional_name(ZONE_NAME),
            heartbeat_timeout_ms=timeout_ms,
            enable_acting_master=fields.optional_boolean("enableActingMaster"),
        )
        with _told(connection, request):
            registered = self._state.routes.register(
                given,
                connection,
                delete_missing_topics=self._state.config.namesrv.delete_topic_with_broker_registration,
                peer=self._peer(connection),
            )
        if registered.change is not None:
            self._state.notify([registered.change])
        told = {"haServerAddr": registered.ha_server_addr, "masterAddr": registered.master_addr}
        ordered = self._state.kv.listed(ORDER_TOPIC_CONFIG)
        if not self._state.config.namesrv.return_order_topic_config_to_broker:
            ordered = None
        return request.reply(
            fields={name: value for name, value in told.items() if value is not None},
            body=ordered or b"",
        )

    def _peer(self, connection: Connection) -> Peer:
        return Peer(connection.peer_host, trusted_hosts(self._state.config.lake.lake_broker_addresses))

    def unregister_broker(self, connection: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        cluster, address = fields.text("clusterName"), fields.text("brokerAddr")
        name, broker_id = fields.text("brokerName"), fields.long("brokerId")
        with _told(connection, request):
            check_claim(self._state.routes, Claim(cluster, address, name, broker_id), self._peer(connection))
        change = self._state.routes.unregister(cluster, address, name, broker_id)
        self._state.notify([change] if change is not None else [])
        return request.reply()

    def broker_heartbeat(self, connection: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        peer = self._peer(connection)
        self._state.routes.live.touch(fields.text("clusterName"), fields.text("brokerAddr"), peer)
        return request.reply()

    def query_data_version(self, connection: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        cluster, address = fields.text("clusterName"), fields.text("brokerAddr")
        if len(request.body) > _MAX_DATA_VERSION:
            raise RequestError(
                f"a data version of {len(request.body)} bytes; {_MAX_DATA_VERSION} are allowed"
            )
        known = self._state.routes.live.data_version(cluster, address)
        changed = known is None or known != DataVersion.decode(request.body)
        self._state.routes.live.touch(cluster, address, self._peer(connection))
        return request.reply(
            fields={"changed": "true" if changed else "false"}, body=known.encode() if known else b""
        )

    def get_broker_member_group(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        cluster, name = fields.optional_text("clusterName") or "", fields.optional_text("brokerName") or ""
        return request.reply(body=broker_member_group(self._state.routes, cluster, name).encode())

    def register_topic(self, connection: Connection, request: Command) -> Answer:
        topic = Fields(request.ext_fields).name("topic")
        if len(request.body) > _LARGE_BODY:
            return self._register_large_topic(connection, request, topic)
        if request.body:
            self._register_topic(connection, request, topic, TopicRouteData.decode(request.body))
        return request.reply()

    async def _register_large_topic(self, connection: Connection, request: Command, topic: str) -> Command:
        route = await self._read(lambda: TopicRouteData.decode(request.body))
        self._register_topic(connection, request, topic, route)
        return request.reply()

    def _register_topic(
        self, connection: Connection, request: Command, topic: str, route: TopicRouteData
    ) -> None:
        with _told(connection, request):
            self._state.routes.register_topic(topic, route.queue_datas, self._peer(connection))


@contextlib.contextmanager
def _told(connection: Connection, request: Command) -> Iterator[None]:
    """Logs a request that is refused within."""
    try:
        yield
    except RequestError as error:
        connection.peer_log.warning(
            connection.peer_host,
            "a broker's request is refused",
            request=RequestCode(request.code).name,
            peer=connection.peer,
            error=str(error),
        )
        raise


def is_large(body: bytes) -> bool:
    """A registration that takes long to read; a compressed one may unpack to a thousand times its size."""
    if len(body) > _LARGE_BODY or body[:1] != b"\x78":
        return len(body) > _LARGE_BODY
    unpacker = zlib.decompressobj()
    try:
        return len(unpacker.decompress(body, _LARGE_BODY)) == _LARGE_BODY
    except zlib.error:
        return False  # it is refused at once


def _address(fields: Fields, name: str) -> str:
    address = fields.name(name, 300)
    try:
        parse_address(address)
    except ConnectError as error:
        raise RequestError(f"{name}: {error}") from error
    return address
