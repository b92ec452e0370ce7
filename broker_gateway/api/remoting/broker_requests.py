"""Requests about the broker itself, and messages looked up in its log."""

from __future__ import annotations

from collections.abc import Callable

from broker_gateway.api.remoting.administration.administration import Administration
from broker_gateway.auth.policy import Policy
from broker_gateway.auth.remoting_calls import permits
from broker_gateway.auth.requests import WHOLE_CONFIGURATION
from broker_gateway.delivery.filters.message_filter import FilterExpressionError, MessageFilter
from broker_gateway.delivery.filters.sql92 import parse_sql_filter
from broker_gateway.delivery.filters.tags import EVERYTHING, parse_tag_filter
from broker_gateway.observability.statistics import Figure, UnknownStatisticsError
from broker_gateway.protocol import java_json
from broker_gateway.protocol.body.tables import KVTable
from broker_gateway.protocol.codes import RequestCode, ResponseCode
from broker_gateway.protocol.command import Command
from broker_gateway.protocol.errors import RequestError
from broker_gateway.protocol.fields import Fields
from broker_gateway.runtime.clock import now_ms
from broker_gateway.transport.remoting.connection import Connection, Processors

_UNIQUE_KEY = "_UNIQUE_KEY_QUERY"
_UNIQUE_MOST = 32
_MAY_WAIT, _HAS_SUBSCRIPTION = 0x2, 0x4
"""In the `sysFlag` of a pull: the broker may hold it until there is something; it names tags."""
_FILTERS: dict[str, Callable[[str], MessageFilter]] = {"TAG": parse_tag_filter, "SQL92": parse_sql_filter}
_SLAVE = (
    "lastReadTimestamp",
    "lastWriteTimestamp",
    "masterFlushOffset",
    "maxOffset",
    "transferredByteInSecond",
)
"""What a slave would say of itself."""


class BrokerRequests:
    """Answers as the original's AdminBrokerProcessor and QueryMessageProcessor."""

    def __init__(self, administration: Administration, policy: Policy) -> None:
        self._admin = administration
        self._policy = policy

    def bind(self, processors: Processors) -> None:
        processors.register(RequestCode.GET_BROKER_RUNTIME_INFO, self.runtime_info)
        processors.register(RequestCode.GET_BROKER_CONFIG, self.shown_config)
        processors.register(RequestCode.UPDATE_BROKER_CONFIG, self.update_config)
        processors.register(RequestCode.VIEW_BROKER_STATS_DATA, self.stats)
        processors.register(RequestCode.DELETE_EXPIRED_COMMITLOG, self.delete_expired)
        processors.register(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_consume_queue)
        processors.register(RequestCode.VIEW_MESSAGE_BY_ID, self.view)
        processors.register(RequestCode.QUERY_MESSAGE, self.query)
        processors.register(RequestCode.PULL_MESSAGE, self.pull)
        processors.register(RequestCode.GET_BROKER_HA_STATUS, self.ha_status)

    def runtime_info(self, _: Connection, request: Command) -> Command:
        try:
            table = self._admin.runtime.table()
        except OSError as error:
            raise RequestError(f"the disk cannot be looked at: {error}") from error
        return request.reply(body=KVTable(table).encode())

    def shown_config(self, connection: Connection, request: Command) -> Command:
        """All of it to operators; to others enough for lakebrokers to reach the gRPC port."""
        options = self._admin.options
        whole = permits(self._policy, connection, WHOLE_CONFIGURATION)
        body = options.shown() if whole else options.public()
        return request.reply(fields={"version": options.version_json()}, body=body)

    async def update_config(self, _: Connection, request: Command) -> Command:
        await self._admin.options.change(request.body, now_ms())
        return request.reply()

    def stats(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        name, key = fields.text("statsName"), fields.text("statsKey")
        try:
            minute, hour, day = self._admin.statistics.figures(name, key)
        except UnknownStatisticsError as error:
            raise RequestError(str(error)) from error
        body = {"statsDay": _item(day), "statsHour": _item(hour), "statsMinute": _item(minute)}
        return request.reply(body=java_json.dumps(body))

    async def delete_expired(self, _: Connection, request: Command) -> Command:
        try:
            await self._admin.retention.run_once(by_hand=True)
        except OSError as error:
            raise RequestError(f"segments cannot be deleted: {error}") from error
        return request.reply()

    def clean_consume_queue(self, _: Connection, request: Command) -> Command:
        """There are no consume queue files; the index goes with its segments."""
        return request.reply()

    def view(self, _: Connection, request: Command) -> Command:
        offset = Fields(request.ext_fields).long("offset")
        return request.reply(body=self._admin.messages.by_physical_offset(offset))

    async def query(self, _: Connection, request: Command) -> Command:
        fields = Fields(request.ext_fields)
        for name in ("maxNum", "beginTimestamp", "endTimestamp"):
            fields.text(name)
        most = _UNIQUE_MOST if fields.boolean(_UNIQUE_KEY) else fields.small("maxNum")
        key = fields.name("key", 32_767)
        topic = self._admin.topics.known(fields.text("topic"))
        found = await self._admin.messages.by_key(
            topic, key, most, fields.long("beginTimestamp"), fields.long("endTimestamp")
        )
        told = {
            "indexLastUpdatePhyoffset": str(self._admin.log_end if found else 0),
            "indexLastUpdateTimestamp": str(now_ms() if found else 0),
        }
        if not found:
            remark = "can not find message, maybe time range not correct"
            if not self._admin.messages.searchable:
                remark = "can not find message: searching by key is off, messageIndexEnable=false"
            return request.reply(ResponseCode.QUERY_NOT_FOUND, remark=remark, fields=told)
        return request.reply(fields=told, body=b"".join(found))

    def pull(self, _: Connection, request: Command) -> Command:
        """Reads only: no group moves, nobody waits.

        A consumer that expects to wait would ask again at once, without end: it is refused, and waits for some seconds.
        """
        fields = Fields(request.ext_fields)
        if fields.small("sysFlag") & _MAY_WAIT:
            raise RequestError(
                "a pull that waits for messages (suspend flag) is not served: 4.x consumers are not supported yet; "
                "use a RocketMQ 5 client over gRPC, or pull without waiting",
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            )
        for name in ("queueId", "maxMsgNums"):
            fields.text(name)
        name = fields.text("topic")
        try:
            topic = self._admin.topics.known(name)
        except RequestError as error:
            raise RequestError(f"topic[{name[:255]}] not exist, apply first please!", error.code) from error
        if not topic.readable:
            raise RequestError(f"the topic[{name}] pulling message is forbidden", ResponseCode.NO_PERMISSION)
        pulled = self._admin.messages.pull(
            topic,
            fields.small("queueId"),
            fields.long("queueOffset"),
            fields.small("maxMsgNums"),
            _subscription(fields, self._admin.filters_properties),
        )
        told = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(pulled.next_offset),
            "minOffset": str(pulled.min_offset),
            "maxOffset": str(pulled.max_offset),
        }
        return request.reply(pulled.code, fields=told, body=pulled.records)

    def ha_status(self, _: Connection, request: Command) -> Command:
        """A master without slaves."""
        body = {
            "haClientRuntimeInfo": dict.fromkeys(_SLAVE, 0),
            "haConnectionInfo": [],
            "inSyncSlaveNums": 0,
            "master": True,
            "masterCommitLogMaxOffset": self._admin.log_end,
        }
        return request.reply(body=java_json.dumps(body))


def _subscription(fields: Fields, filters_properties: bool) -> MessageFilter:
    """What a pull wants of a queue; everything where it does not say. SUBSCRIPTION_PARSE_FAILED, SYSTEM_ERROR."""
    if not fields.small("sysFlag") & _HAS_SUBSCRIPTION:
        return EVERYTHING
    kind = fields.optional_text("expressionType") or "TAG"
    if kind not in _FILTERS:
        raise RequestError(f"The broker does not support consumer to filter message by {kind[:64]}")
    try:
        wanted = _FILTERS[kind](fields.optional_text("subscription") or "")
    except FilterExpressionError as error:
        raise RequestError(
            f"parse the consumer's subscription failed: {error}", ResponseCode.SUBSCRIPTION_PARSE_FAILED
        ) from error
    if kind != "TAG" and not filters_properties:
        raise RequestError(
            f"The broker does not support consumer to filter message by {kind}; set enablePropertyFilter=true to allow it"
        )
    return wanted


def _item(figure: Figure) -> dict[str, float]:
    return {"avgpt": figure.average, "sum": figure.total, "tps": figure.per_second}
