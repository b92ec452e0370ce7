"""Requests that change something or show options: KV table, permissions, topics, the name server's own options.

Taken from this machine only, unless `lakeRemoteAdmin` is on. Reading the KV table is free.
"""

from __future__ import annotations

import structlog

from broker_gateway.config.options import parse_properties
from broker_gateway.nameserver.config import NameServerConfig
from broker_gateway.nameserver.state import State
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.runtime.errors import OptionError
from broker_gateway.transport.remoting.connection import Connection, Processors

log = structlog.get_logger(__name__)

_NEVER_CHANGED = {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "lakeRemoteAdmin"}


class AdminRequests:
    """Answers as the original's DefaultRequestProcessor."""

    def __init__(self, state: State) -> None:
        self._state = state

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.GET_KV_CONFIG, self.get_kv_config)
        processors.register(RequestCode.GET_KVLIST_BY_NAMESPACE, self.get_kv_list)
        processors.register(RequestCode.PUT_KV_CONFIG, self.put_kv_config)
        processors.register(RequestCode.DELETE_KV_CONFIG, self.delete_kv_config)
        processors.register(RequestCode.WIPE_WRITE_PERM_OF_BROKER, self.wipe_write_perm)
        processors.register(RequestCode.ADD_WRITE_PERM_OF_BROKER, self.add_write_perm)
        processors.register(RequestCode.DELETE_TOPIC_IN_NAMESRV, self.delete_topic)
        processors.register(RequestCode.UPDATE_NAMESRV_CONFIG, self.update_config)
        processors.register(RequestCode.GET_NAMESRV_CONFIG, self.get_config)

    async def put_kv_config(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        namespace, key = fields.optional_text("namespace"), fields.optional_text("key")
        if namespace is None or key is None:
            raise RequestError("namespace or key is null")
        value = fields.text("value")
        await self._state.change_kv(lambda kv: kv.put(namespace, key, value))
        return request.reply()

    async def delete_kv_config(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        namespace, key = fields.text("namespace"), fields.text("key")
        await self._state.change_kv(lambda kv: kv.delete(namespace, key))
        return request.reply()

    def get_kv_config(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        namespace, key = fields.text("namespace"), fields.text("key")
        value = self._state.kv.get(namespace, key)
        if value is None:
            raise RequestError(
                f"No config item, Namespace: {namespace} Key: {key}", ResponseCode.QUERY_NOT_FOUND
            )
        return request.reply(fields={"value": value})

    def get_kv_list(self, _: Connection, request: Command) -> Command:
        namespace = Fields(request.ext_fields).text("namespace")
        found = self._state.kv.listed(namespace)
        if found is None:
            raise RequestError(f"No config item, Namespace: {namespace}", ResponseCode.QUERY_NOT_FOUND)
        return request.reply(body=found)

    def wipe_write_perm(self, _: Connection, request: Command) -> Command:
        count = self._state.routes.topics.wipe_write_perm(Fields(request.ext_fields).text("brokerName"))
        return request.reply(fields={"wipeTopicCount": str(count)})

    def add_write_perm(self, _: Connection, request: Command) -> Command:
        count = self._state.routes.topics.add_write_perm(Fields(request.ext_fields).text("brokerName"))
        return request.reply(fields={"addTopicCount": str(count)})

    def delete_topic(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        self._state.routes.delete_topic(fields.text("topic"), fields.optional_text("clusterName") or None)
        return request.reply()

    async def update_config(self, _: Connection, request: Command) -> Command:
        try:
            given = parse_properties(request.body.decode("utf-8"), "the request")
        except (UnicodeDecodeError, OptionError) as error:
            raise RequestError(f"string2Properties error: {error}") from error
        listed = self._state.config.namesrv.config_black_list.split(";")
        if not _NEVER_CHANGED.union(listed).isdisjoint(given):
            raise RequestError("Can not update config in black list.", ResponseCode.NO_PERMISSION)
        unknown = given.keys() - self._state.config.options().keys()
        if unknown:
            log.warning("unknown options have no effect", options=sorted(unknown)[:20])

        def changed(config: NameServerConfig) -> NameServerConfig:
            try:
                return config.changed(given)
            except OptionError as error:
                raise RequestError(str(error), ResponseCode.INVALID_PARAMETER) from error

        await self._state.change_config(changed)
        return request.reply()

    def get_config(self, _: Connection, request: Command) -> Command:
        options = sorted(self._state.config.options().items())
        return request.reply(body="".join(f"{name}={value}\n" for name, value in options).encode())
