"""Gateways of tests: words to start one, commands at one, one whose retention deletes at once what is due."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import LOOPBACK, PATIENT, Gateway, settings_of
from tests.support.waiting import wait_until

SEGMENT = 1 << 20
AT_ONCE = {
    **OPTIONS,
    "mappedFileSizeCommitLog": str(SEGMENT),
    "fileReservedTime": "0",
    "deleteWhen": ";".join(str(hour) for hour in range(24)),
    "cleanResourceInterval": "100",
}
BODY = b"x" * 100_000


def goodbye_was_late(log: str, name_server: str) -> bool:
    """Whether this name server was too busy to answer a broker's goodbye, for which it has 3 s."""
    lines = [
        line for line in log.splitlines() if "the broker could not unregister" in line and name_server in line
    ]
    return any(re.search(r" within \d| in time| in \d", line) for line in lines)


def first_segment(gateway: Gateway) -> int:
    return min(int(path.name) for path in (gateway.store / "commitlog").iterdir())


def drain(client: Client, topic: str, group: str) -> list[pb.Message]:
    found: list[pb.Message] = []
    while messages := client.receive(topic, group, invisible_ms=3_600_000)[1]:
        found += messages
    return found


def receive_all(
    client: Client,
    topic: str,
    group: str,
    count: int,
    *,
    settle: bool = False,
    wait_ms: int = 1000,
    **asked: Any,
) -> list[pb.Message]:
    """So many messages at least, however long they take, acknowledged where `settle` says so; `asked` as of a client's receive."""
    found: list[pb.Message] = []

    def come() -> bool:
        some = client.receive(topic, group, wait_ms=wait_ms, **{"invisible_ms": 3_600_000, **asked})[1]
        if settle and some:
            assert client.ack(topic, group, *some).status.code == pb.OK
        found.extend(some)
        return len(found) >= count

    wait_until(come, lambda: f"{count} messages, after {len(found)},")
    return found


def lakebroker(*arguments: str) -> str:
    """What a command prints, run in this process."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def create(gateway: Gateway, topic: str, queues: int = 2, *more: str) -> None:
    run(gateway, "topic", "create", topic, "--queues", str(queues), *more)


def run(gateway: Gateway, *arguments: str, status: int = 0) -> Result:
    """A command at a gateway, to its end, which must have the status."""
    done = CliRunner().invoke(app, [*arguments, "--gateway", gateway.address])
    assert done.exit_code == status, done.output
    return done


def answer(gateway: Gateway, *arguments: str) -> Any:
    return json.loads(run(gateway, *arguments, "--json").stdout)


def said(gateway: Gateway, *arguments: str, status: int = 1) -> str:
    done = run(gateway, *arguments, status=status)
    assert done.stdout == ""
    assert done.stderr.startswith("lakebroker: ")
    return done.stderr


def gateway_words(folder: Path, *arguments: str, **options: str) -> list[str]:
    """A broker on free ports of the loopback interface, whose store and list of ports go into `folder`; `options` go before."""
    given = {
        "storePathRootDir": str(folder / "store"),
        "lakePortFile": str(folder / "ports.json"),
        **LOOPBACK,
        **PATIENT,
        "mappedFileSizeCommitLog": str(16 << 20),
        **options,
    }
    return ["gateway", *arguments, *settings_of(given)]
