"""The official Python client and `lakebroker_testing` in one process, as docs/testing-your-code.md shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakebroker_testing.gateway import ROOT, Gateway
from lakebroker_testing.official_client import interpreter
from tests.support.waiting import LIMIT_S

FIRST = {
    "client first": "import rocketmq, lakebroker_testing.client",
    "broker first": "import lakebroker_testing.client, rocketmq",
}
SCRIPT = """
import sys
sys.path.append(sys.argv[2])
{imports}
from lakebroker_testing.broker import InProcessBroker
from lakebroker_testing.client import Client
from rocketmq import ClientConfiguration, Credentials, Message, Producer

with InProcessBroker() as broker:
    broker.create_topic("t")
    broker.create_group("g")
    broker.send("t", b"inside")
    print(broker.receive("t", "g")[1][0].body)

producer = Producer(ClientConfiguration(sys.argv[1], Credentials()), ("t",))
producer.startup()
message = Message()
message.topic, message.body = "t", b"over gRPC"
producer.send(message)
producer.shutdown()
client = Client(sys.argv[1])
print(client.receive("t", "g")[1][0].body)
client.channel.close()
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(tmp_path_factory.mktemp("gateway")) as started:
        yield started


@pytest.mark.parametrize("imports", FIRST.values(), ids=FIRST.keys())
def test_both_work_in_one_process(gateway: Gateway, tmp_path: Path, imports: str) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = interpreter().parent.parent / "lib" / version / "site-packages"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(imports=imports), gateway.address, str(packages)],
        cwd=ROOT,
        env={**os.environ, "HOME": str(tmp_path)},  # the client writes its log there
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "b'inside'\nb'over gRPC'\n"
