"""The wheel on four machines, each with its own extra and nothing else: a broker's host, a Spark cluster, an analyst's laptop, and
one that only speaks to a gateway. Together they are the whole system.

Each begins with the base package, and gets its extra by what the command that lacks it says.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from lakebroker_testing.client import Client
from tests.support.packages.built_wheel import built_wheel
from tests.support.packages.environments import Environment, variables
from tests.support.packages.extras import SPARK

OTHERS = {
    "broker": {*SPARK, "delta-spark", "duckdb", "duckdb-extension-delta", "pandas", "pyiceberg", "fastavro"},
    "cluster": {*SPARK, "delta-spark", "duckdb", "pandas", "uvloop", "httpunk", "lark", "cryptography"},
    "sql": {*SPARK, "delta-spark", "pandas", "uvloop", "httpunk", "prometheus-client", "cryptography"},
    "": {
        *SPARK,
        "duckdb",
        "deltalake",
        "pyarrow",
        "obstore",
        "uvloop",
        "httpunk",
        "lark",
        "prometheus-client",
    },
}
"""What is of other machines."""
SERVE = """
import sys
from pathlib import Path
from lakebroker_testing.client import OPTIONS
from lakebroker_testing.gateway import Gateway

with Gateway(Path(sys.argv[1]), **OPTIONS) as gateway:
    print(gateway.address, flush=True)
    sys.stdin.read()
    print(gateway.terminate())
"""
OF_EXECUTORS = "import structured_streaming.reput_source, structured_streaming.staging.stage, store.scan"
WITHOUT_PYDANTIC = f"import sys; sys.modules['pydantic'] = None; {OF_EXECUTORS}"
ORDERS = 3

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def built() -> Path:
    return built_wheel()


@pytest.fixture(scope="module")
def of_spark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a cluster has: Spark's Python packages, and no pandas beside them."""
    folder = tmp_path_factory.mktemp("spark")
    for name in SPARK:
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None
        (folder / name).symlink_to(Path(found.origin).parent)
    return folder


def machine(folder: Path, built: Path, extra: str, *lacks: str, path: Path | None = None) -> Environment:
    """An environment with the wheel, in which a command says how to install the extra that it lacks."""
    environment = Environment(folder)
    environment.install(str(built))
    if extra:
        done = environment.run(*lacks, path=path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"lakebroker: {lacks[0]} needs "), done.stderr
        pip, install, asked = shlex.split(done.stderr.rpartition("not installed: ")[2])
        assert (pip, install, asked) == ("pip", "install", f"lakebroker[{extra}]")
        environment.install(asked)
    assert OTHERS[extra] & environment.distributions() == set()
    return environment


@pytest.fixture(scope="module")
def client(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return machine(tmp_path_factory.mktemp("client") / "env", built, "")


@pytest.fixture(scope="module")
def gateway(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a gateway on a broker's host."""
    folder = tmp_path_factory.mktemp("broker")
    host = machine(folder / "env", built, "broker", "gateway", "--store", str(folder / "store"))
    with subprocess.Popen(
        [str(host.python), "-c", SERVE, str(folder)],
        cwd=folder,
        env=variables(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=(folder / "errors").open("wb"),
        text=True,
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, (folder / "errors").read_text()
        yield address
        ended, _ = process.communicate()
        assert ended.split() == ["0"], (folder / "gateway.log").read_text()


@pytest.fixture(scope="module")
def orders(gateway: str, client: Environment) -> str:
    """The gateway, after orders were sent to it and all but one of them acknowledged."""
    for made in (("topic", "create", "orders", "--queues", "1"), ("group", "create", "audit")):
        done = client.run(*made, "--gateway", gateway)
        assert done.returncode == 0, done.stderr
    for number in range(ORDERS):
        done = client.run(
            "send", "orders", f"body {number}", "--key", f"order-{number}", "--gateway", gateway
        )
        assert done.returncode == 0, done.stderr
    calls = Client(gateway)
    code, messages = calls.receive("orders", "audit")
    assert (code, [message.body for message in messages]) == (20000, [b"body 0", b"body 1", b"body 2"])
    for message in messages[:-1]:
        assert calls.ack("orders", "audit", message).status.code == 20000
    return gateway


@pytest.fixture(scope="module")
def lake(orders: str, built: Path, of_spark: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake that a cluster's Spark made of the gateway's log, read over the network."""
    folder = tmp_path_factory.mktemp("cluster")
    reput = ("reput", "--brokers", orders, "--lake", str(folder / "lake"), "--once", "--json")
    cluster = machine(folder / "env", built, "cluster", *reput, path=of_spark)
    done = cluster.run("-c", WITHOUT_PYDANTIC, program=True, path=of_spark)
    assert done.returncode == 0, done.stderr
    done = cluster.run(*reput, path=of_spark)
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(line)["records"] for line in done.stdout.splitlines()) > ORDERS
    return folder / "lake"


def test_a_machine_without_an_extra_speaks_to_a_gateway(orders: str, client: Environment) -> None:
    done = client.run("lag", "audit", "--gateway", orders, "--json")
    assert done.returncode == 0, done.stderr
    assert [(row["topic"], row["lag"]) for row in json.loads(done.stdout)] == [("orders", 1)]
    done = client.run("message", "order-1", "--topic", "orders", "--gateway", orders, "--json")
    assert done.returncode == 0, done.stderr
    assert [row["body"] for row in json.loads(done.stdout)] == ["body 1"]


def test_a_laptop_asks_the_lake_that_a_cluster_made_of_a_brokers_log(
    lake: Path, built: Path, tmp_path: Path
) -> None:
    laptop = machine(tmp_path / "env", built, "sql", "sql", "--lake", str(lake), "SELECT 1")
    asked = "SELECT keys[1] AS key, body::VARCHAR AS body FROM messages WHERE topic = 'orders' ORDER BY queue_offset"
    done = laptop.run("sql", "--lake", str(lake), "--format", "json", asked)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [{"key": f"order-{n}", "body": f"body {n}"} for n in range(ORDERS)]
    done = laptop.run("lag", "audit", "--lake", str(lake), "--json")
    assert done.returncode == 0, done.stderr
    assert [(row["topic"], row["lag"]) for row in json.loads(done.stdout)] == [("orders", 1)]
    done = laptop.run("dlq", "list", "audit", "--lake", str(lake), "--filter", "a > 1", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (0, []), done.stderr
