"""What a ReceiveMessage asks for: read, checked, and kept as a `Poll` until it is answered."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from broker_gateway.config.gateway import GatewayConfig
from broker_gateway.delivery.queue_delivery import InFlight, QueueDelivery, QueueKey
from broker_gateway.delivery.tag_filter import FilterExpressionError, TagFilter, parse_tag_filter
from broker_gateway.metadata.catalog import READ, Group, Topic
from broker_gateway.runtime.shares import address_of
from broker_gateway.service.clients import ClientRegistry
from broker_gateway.service.context import CallContext
from broker_gateway.service.filter_warnings import FilterWarnings
from broker_gateway.service.redelivery import RENEWED_MS
from broker_gateway.service.reply import Reply
from broker_gateway.service.resources import Resources
from broker_gateway.service.status import ServiceError
from broker_gateway.service.validation import check_invisible_ms, client_id_of, duration_ms, shown
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

Response = rpc.ReceiveMessageResponse | bytes
MAX_BATCH = 32
RECEIVE_BYTES = 1 << 20
"""A receive stops taking messages once their bodies pass this (RocketMQ's at 256 KiB): larger ones would hold the loop."""
_SLACK_S = 0.2
"""Part of a call's deadline left for the reply to travel."""
_REQUEST_TIMEOUT_MS = 3000


@dataclass(slots=True, eq=False)
class Poll:
    """One ReceiveMessage call, and what it took (`messages` are responses' bytes).

    `left`: queues that a look under way has yet to look at (ids of the topic's, keys of others), the next one last;
    `seen`: what had been offered when it began; `failed`: the first queue's error of that look. `put_off_s`:
    since when its first look has been put off, by `clock.monotonic_s`; 0: it has not. `renewed_at`: see `InFlight.host`.
    """

    group: Group
    topic: Topic
    tags: TagFilter
    batch_size: int
    invisible_ms: int
    auto_renew: bool
    client_id: str
    attempt_id: str
    wait_s: float
    peer: str = ""
    renewed_at: str = ""
    delivery_id: int = 0
    timer: asyncio.TimerHandle | None = None
    body_bytes: int = 0
    seen: int = 0
    put_off_s: float = 0.0
    failed: Exception | None = None
    left: list[int | QueueKey] = field(default_factory=list)
    reply: Reply[list[Response]] = field(default_factory=Reply)
    messages: list[bytes] = field(default_factory=list)
    taken: list[tuple[QueueDelivery, InFlight]] = field(default_factory=list)

    @property
    def full(self) -> bool:
        """Whether the reply takes no more."""
        return len(self.messages) >= self.batch_size or self.body_bytes >= RECEIVE_BYTES


class PollReader:
    """Makes polls of requests."""

    def __init__(
        self,
        config: GatewayConfig,
        resources: Resources,
        clients: ClientRegistry,
    ) -> None:
        self._resources = resources
        self._clients = clients
        self._warnings = FilterWarnings()
        self.configure(config)

    def configure(self, config: GatewayConfig) -> None:
        """Takes what may change while the broker runs."""
        broker = config.broker
        self._proxy = config.proxy
        self._permission = broker.broker_permission
        self._longest_wait_s = (
            math.inf if broker.long_polling_enable else broker.short_polling_time_mills / 1000
        )

    def read(
        self, request: rpc.ReceiveMessageRequest, context: CallContext, request_timeout_ms: int | None
    ) -> Poll:
        """Raises ServiceError when the call cannot be served."""
        client_id = client_id_of(context)
        if not self._permission & READ:
            raise ServiceError(
                pb.FORBIDDEN,
                f"the broker gives no messages now (brokerPermission={self._permission}); receive from another",
            )
        topic = self._resources.topic(request.message_queue.topic)
        group = self._resources.group(request.group, context.peer)
        if not topic.readable or not topic.read_queues:
            raise ServiceError(pb.FORBIDDEN, f"topic {shown(topic.name)} must not be read")
        if not group.consume_enabled:
            raise ServiceError(pb.FORBIDDEN, f"consumer group {shown(group.name)} must not consume")
        if request.batch_size <= 0:
            raise ServiceError(
                pb.BAD_REQUEST, f"batch size {request.batch_size} is not positive; ask for 1 to {MAX_BATCH}"
            )
        if request.auto_renew:
            invisible_ms = RENEWED_MS
        else:
            invisible_ms = check_invisible_ms(
                duration_ms(request.invisible_duration, "the invisible duration", pb.ILLEGAL_INVISIBLE_TIME),
                self._proxy.min_invisible_time_mills_for_recv,
                self._proxy.max_invisible_time_mills,
            )
        tags = _filter(request.filter_expression)
        if tags.doubtful:
            self._warnings.look(tags, group.name, topic.name, context.peer)
        known = request.auto_renew and self._clients.own(client_id, context.peer) is not None
        return Poll(
            group,
            topic,
            tags,
            min(request.batch_size, MAX_BATCH),
            invisible_ms,
            request.auto_renew,
            client_id,
            request.attempt_id[:128],
            min(self._polling_s(request, context, request_timeout_ms), self._longest_wait_s),
            context.peer,
            address_of(context.peer) if known else "",
        )

    def _polling_s(
        self, request: rpc.ReceiveMessageRequest, context: CallContext, request_timeout_ms: int | None
    ) -> float:
        """How long to wait for a message, s: within the proxy's limits and the call's deadline."""
        shortest = self._proxy.grpc_client_consumer_min_long_polling_timeout_millis / 1000
        longest = self._proxy.grpc_client_consumer_max_long_polling_timeout_millis / 1000
        remaining = context.remaining_s
        if request.HasField("long_polling_timeout"):
            asked = (
                duration_ms(request.long_polling_timeout, "the polling timeout", pb.ILLEGAL_POLLING_TIME)
                / 1000
            )
            if asked < 0:
                raise ServiceError(pb.ILLEGAL_POLLING_TIME, f"the polling timeout of {asked:g} s is negative")
        elif remaining is not None:
            asked = remaining - (request_timeout_ms or _REQUEST_TIMEOUT_MS) / 2000
        else:
            asked = longest
        wait_s = min(max(asked, shortest), longest)
        if remaining is None or wait_s <= remaining - _SLACK_S:
            return wait_s
        if remaining < shortest - _SLACK_S:
            raise ServiceError(
                pb.ILLEGAL_POLLING_TIME,
                f"the deadline leaves {remaining:.1f} s, long polling needs at least {shortest:g} s",
            )
        return remaining - _SLACK_S


def _filter(expression: pb.FilterExpression) -> TagFilter:
    if expression.type == pb.SQL:
        raise ServiceError(
            pb.NOT_IMPLEMENTED, "SQL filters are not implemented yet; use a tag filter such as `a || b`"
        )
    if expression.type not in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
        raise ServiceError(pb.ILLEGAL_FILTER_EXPRESSION, f"filter type {expression.type} is unknown; use TAG")
    try:
        return parse_tag_filter(expression.expression)
    except FilterExpressionError as error:
        raise ServiceError(pb.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
