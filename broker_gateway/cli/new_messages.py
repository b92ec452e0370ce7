"""Messages that commands send."""

from __future__ import annotations

import secrets
from typing import Any

from broker_gateway.cli.gateway_calls import GatewayCalls


def send_message(calls: GatewayCalls, message: Any) -> Any:
    """The answer to SendMessage of one message, which gets an id and the time of its birth; its status is the caller's to look
    at."""
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    message.system_properties.message_id = f"01{secrets.token_hex(16).upper()}"
    message.system_properties.born_timestamp.GetCurrentTime()
    request = rpc.SendMessageRequest(messages=[message])
    return calls.messaging("SendMessage", request, rpc.SendMessageResponse)


def end_transaction(calls: GatewayCalls, topic: Any, entry: Any, resolution: Any) -> Any:
    """The answer to EndTransaction of what a send of a TRANSACTION message answered, COMMIT or ROLLBACK; its status is the
    caller's to look at."""
    from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
    from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc

    request = rpc.EndTransactionRequest(
        topic=topic,
        message_id=entry.message_id,
        transaction_id=entry.transaction_id,
        resolution=resolution,
        source=pb.SOURCE_CLIENT,
    )
    return calls.messaging("EndTransaction", request, rpc.EndTransactionResponse)
