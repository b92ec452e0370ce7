"""Three brokers that one name server knows, and which of their queues a message group or lite topic has."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from broker_gateway.messaging.ordered_sends import bucket
from lakebroker_testing.gateway import Gateway, NameServer

from .test_processes import routes, wait_for

NAMES = ("a", "b", "c")
QUEUES = 2
"""Of a topic, at each of them."""
_QUICK = {"listenPort": "0", "grpcClientConsumerMinLongPollingTimeoutMillis": "100"}


def three_brokers(folder: Path, stack: ExitStack) -> dict[str, Gateway]:
    """By name; they end with `stack`."""
    name_server = stack.enter_context(NameServer(folder / "namesrv"))
    return {
        name: stack.enter_context(
            Gateway(folder / name, namesrvAddr=name_server.address, brokerName=name, **_QUICK)
        )
        for name in NAMES
    }


def wait_until_known(brokers: dict[str, Gateway], topic: str) -> None:
    """Each knows that all have the topic."""
    for each in brokers.values():
        wait_for(lambda each=each: len(routes(each.grpc_port, topic)) == len(NAMES))


def place(name: str) -> tuple[str, int]:
    """Broker and queue of a message group or lite topic."""
    number = bucket(name, len(NAMES) * QUEUES)
    return NAMES[number // QUEUES], number % QUEUES
