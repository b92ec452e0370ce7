"""Fields of requests that many calls have: read, and refused when they are malformed."""

from __future__ import annotations

from broker_gateway.delivery.filters.message_filter import FilterExpressionError, MessageFilter
from broker_gateway.delivery.filters.sql92 import parse_sql_filter
from broker_gateway.delivery.filters.tags import parse_tag_filter
from broker_gateway.messaging.outcome import Reason, ServiceError
from broker_gateway.messaging.poll import Patience
from broker_gateway.protocol.resource_names import resource_name
from broker_gateway.transport.context import CallContext
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_pb.google.protobuf.duration_pb2 import Duration
from lakebroker_pb.google.protobuf.timestamp_pb2 import Timestamp

CLIENT_ID_MAX_LENGTH = 255


def client_id_of(context: CallContext) -> str:
    """The caller's id; CLIENT_ID_REQUIRED without one, BAD_REQUEST beyond 255 characters."""
    client_id = context.metadata.get("x-mq-client-id", "")
    if not client_id.strip():
        raise ServiceError(
            Reason.CLIENT_ID_REQUIRED, "the metadata x-mq-client-id is missing; every call must carry it"
        )
    if len(client_id) > CLIENT_ID_MAX_LENGTH:
        raise ServiceError(
            Reason.BAD_REQUEST,
            f"x-mq-client-id has {len(client_id)} characters, at most {CLIENT_ID_MAX_LENGTH} are taken",
        )
    return client_id


def topic_name(resource: pb.Resource) -> str:
    """A topic's full name. ILLEGAL_TOPIC when there is none."""
    if not resource.name.strip():
        raise ServiceError(Reason.ILLEGAL_TOPIC, "the topic is empty; name one")
    return resource_name(resource)


def group_name(resource: pb.Resource) -> str:
    """A consumer group's full name. ILLEGAL_CONSUMER_GROUP when there is none."""
    if not resource.name.strip():
        raise ServiceError(Reason.ILLEGAL_CONSUMER_GROUP, "the consumer group is empty; name one")
    return resource_name(resource)


def duration_ms(duration: Duration, what: str, reason: Reason) -> int:
    """A duration in ms; a malformed one is refused with `reason`."""
    if not (-315_576_000_000 <= duration.seconds <= 315_576_000_000) or abs(duration.nanos) > 999_999_999:
        raise ServiceError(
            reason, f"{what} of {duration.seconds} s and {duration.nanos} ns is not a duration"
        )
    return duration.seconds * 1000 + duration.nanos // 1_000_000


def timestamp_ms(timestamp: Timestamp) -> int:
    """A timestamp in ms since the epoch. BAD_REQUEST for a malformed one."""
    if not 0 <= timestamp.nanos <= 999_999_999:
        raise ServiceError(
            Reason.BAD_REQUEST,
            f"a timestamp of {timestamp.nanos} ns behind the second is none; give 0 to 999999999",
        )
    return timestamp.seconds * 1000 + timestamp.nanos // 1_000_000


def patience_of(
    request: rpc.ReceiveMessageRequest | rpc.PullMessageRequest,
    context: CallContext,
    request_timeout_ms: int | None,
) -> Patience:
    """How long a request is to wait for messages. ILLEGAL_POLLING_TIME."""
    polling_ms = None
    if request.HasField("long_polling_timeout"):
        reason = Reason.ILLEGAL_POLLING_TIME
        polling_ms = duration_ms(request.long_polling_timeout, "the polling timeout", reason)
    return Patience(polling_ms, context.remaining_s, request_timeout_ms)


def filter_of(expression: pb.FilterExpression) -> MessageFilter:
    """ILLEGAL_FILTER_EXPRESSION."""
    if expression.type not in (pb.TAG, pb.SQL, pb.FILTER_TYPE_UNSPECIFIED):
        raise ServiceError(
            Reason.ILLEGAL_FILTER_EXPRESSION, f"filter type {expression.type} is unknown; use TAG or SQL"
        )
    parse = parse_sql_filter if expression.type == pb.SQL else parse_tag_filter
    try:
        return parse(expression.expression)
    except FilterExpressionError as error:
        raise ServiceError(Reason.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
