"""Single requests of RocketMQ's remoting protocol, and the topics and groups that a test makes with them, at a real broker and at ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from broker_gateway.protocol import java_json
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from tests.support.waiting import LIMIT_S


def invoke(address: str, command: Command) -> Command:
    """The answer to a request, on a connection of its own."""

    async def ask() -> Command:
        client = RemotingClient()
        try:
            return await client.invoke(address, command, LIMIT_S)
        finally:
            await client.close()

    return asyncio.run(ask())


def ask(address: str, code: int, body: Any = None, **fields: Any) -> Command:
    """`invoke` of a code, a body, bytes or for JSON, and fields."""
    text = b"" if body is None else body if isinstance(body, bytes) else java_json.dumps(body)
    return invoke(address, Command(code, {name: str(value) for name, value in fields.items()}, text))


def done(address: str, code: int, body: Any = None, **fields: Any) -> Command:
    """`ask`, where the answer must be no refusal."""
    answer = ask(address, code, body, **fields)
    assert answer.code == 0, answer.remark
    return answer


def create(
    address: str, topics: Mapping[str, tuple[int, str]], groups: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Topics by name with their queues and message type, and groups with fields of their configuration."""
    made = [
        {
            "topicName": name,
            "readQueueNums": queues,
            "writeQueueNums": queues,
            "perm": 6,
            "attributes": {"+message.type": kind},
        }
        for name, (queues, kind) in topics.items()
    ]
    done(address, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": made})
    if groups:
        configurations = [{"groupName": name, **fields} for name, fields in groups.items()]
        done(
            address,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            {"groupConfigList": configurations},
        )


def pull(address: str, topic: str, offset: int) -> Command:
    """Messages of queue 0."""
    return ask(address, RequestCode.PULL_MESSAGE, topic=topic, queueId=0, queueOffset=offset, maxMsgNums=32)


def queue_end(address: str, topic: str, queue: int = 0) -> int:
    """Behind a queue's last message; a real broker puts a message into its queue after it has answered."""
    answer = done(address, RequestCode.GET_MAX_OFFSET, topic=topic, queueId=queue)
    return int(answer.ext_fields["offset"])
