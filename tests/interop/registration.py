"""A broker's registration with a name server, put in by hand: what its topics are, asked of itself, every half second."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from broker_gateway.remoting import java_json
from broker_gateway.remoting.body.registration import RegisterBrokerBody
from broker_gateway.remoting.body.topic_config import DataVersion, TopicConfig
from broker_gateway.remoting.client import RemotingClient
from broker_gateway.remoting.codes import RequestCode
from broker_gateway.remoting.command import Command
from broker_gateway.remoting.java_json import JsonObject

CLUSTER, BROKER = "DefaultCluster", "broker-a"


@contextlib.contextmanager
def registered(broker: str, name_server: str) -> Iterator[None]:
    """Keeps the broker at an address registered; yields once it is."""
    stopped, done = threading.Event(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(_register(broker, name_server, stopped, done))
        except BaseException as error:
            failures.append(error)
            done.set()

    thread = threading.Thread(target=run, name="registration")
    thread.start()
    try:
        assert done.wait(30)
        yield
    finally:
        stopped.set()
        thread.join()
        if failures:
            raise failures[0]


async def _register(broker: str, name_server: str, stopped: threading.Event, done: threading.Event) -> None:
    client = RemotingClient()
    number = 0
    try:
        while not stopped.is_set():
            number += 1
            answer = await client.invoke(broker, Command(RequestCode.GET_ALL_TOPIC_CONFIG), 20)
            assert answer.code == 0, answer.remark
            table = JsonObject(java_json.loads(answer.body), "the answer").object("topicConfigTable")
            topics = {name: TopicConfig.from_json(table.object(name)) for name in table.members}
            topics |= {name: TopicConfig(name, perm=7) for name in (CLUSTER, BROKER)}
            body = RegisterBrokerBody(DataVersion(0, number, number), topics).encode(compress=False)
            fields = {
                "brokerName": BROKER,
                "brokerAddr": broker,
                "clusterName": CLUSTER,
                "haServerAddr": "",
                "brokerId": "0",
                "compressed": "false",
            }
            answer = await client.invoke(name_server, Command(RequestCode.REGISTER_BROKER, fields, body), 20)
            assert answer.code == 0, answer.remark
            done.set()
            await asyncio.sleep(0.5)
    finally:
        await client.close()
