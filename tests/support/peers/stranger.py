"""What somebody on another machine sends to a name server and a broker, from a namespace: prints a JSON object of replies."""

from __future__ import annotations

import asyncio
import json
import sys
import zlib

from broker_gateway.protocol.body.registration import RegisterBrokerBody
from broker_gateway.protocol.body.topic_config import DataVersion, TopicConfig
from broker_gateway.protocol.codes import RequestCode
from broker_gateway.protocol.command import Command
from broker_gateway.transport.remoting.client import RemotingClient
from tests.support.waiting import LIMIT_S


def register(name: str, address: str, state: int = 0) -> Command:
    """A registration with 512 queues of `orders`."""
    topics = {topic: TopicConfig(topic, 512, 512) for topic in ("orders", "other")}
    body = RegisterBrokerBody(DataVersion(state, 0, 1), topics).encode(compress=False)
    fields = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": address,
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
    }
    return Command(RequestCode.REGISTER_BROKER, fields, body)


async def main(name_server: str, victim: str, canary: str, own: str) -> None:
    client = RemotingClient()
    told = {"clusterName": "DefaultCluster", "brokerName": "lake", "brokerId": "0", "brokerAddr": victim}
    requests = {
        "another's address": register("fake", canary),
        "the victim's name": register("lake", own, state=99),
        "the victim's address": register("lake", victim, state=99),
        "unregister": Command(RequestCode.UNREGISTER_BROKER, told),
    }
    answers = {}
    for what, request in requests.items():
        answers[what] = (await client.invoke(name_server, request, LIMIT_S)).code
    sys.stdout.write(json.dumps(answers) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)  # its brokers are there until it is told to go
    await client.close()


asyncio.run(main(*sys.argv[1:]))
