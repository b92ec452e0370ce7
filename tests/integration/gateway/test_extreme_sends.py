"""Every field of a send at its extremes beside innocent sends, over a real connection."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, SERVICE, Client
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.messages import message
from tests.support.logs.extreme_sends import extreme_messages

DEADLINE_S = 120.0


def test_every_call_is_answered(tmp_path: Path) -> None:
    with Gateway(tmp_path, **OPTIONS) as gateway:
        client = Client(gateway.address)
        assert client.send("orders", b"first").status.code == pb.OK
        calls: list[tuple[str, Any]] = []
        for number, extreme in enumerate(extreme_messages("orders")):
            calls.append((extreme.name, begin(client, extreme.message)))
            calls.append(("", begin(client, message("orders", b"innocent %d" % number))))
        innocent = 0
        for name, call in calls:
            error = call.exception()
            if error is not None:
                assert name, error
                assert error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED, name
                continue
            answer = call.result()
            if name:
                assert answer.status.code != pb.INTERNAL_SERVER_ERROR, (name, answer.status.message)
            else:
                assert answer.status.code == pb.OK, answer.status.message
                innocent += 1
        assert innocent == len(calls) // 2
        assert client.send("orders", b"afterwards").status.code == pb.OK
        client.channel.close()


def begin(client: Client, one: pb.Message) -> Any:
    send = client.channel.unary_unary(
        f"/{SERVICE.full_name}/SendMessage",
        request_serializer=rpc.SendMessageRequest.SerializeToString,
        response_deserializer=rpc.SendMessageResponse.FromString,
    )
    return send.future(rpc.SendMessageRequest(messages=[one]), timeout=DEADLINE_S, metadata=client.metadata)
