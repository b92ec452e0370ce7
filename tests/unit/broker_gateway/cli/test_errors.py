"""What commands say when they are given what cannot be: the value and the remedy."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from broker_gateway.cli.admin_commands import when
from broker_gateway.cli.gateway_calls import failed
from broker_gateway.cli.main import app
from lakebroker_testing.gateway import settings_of
from lakebroker_testing.ports import free_ports
from store.log.record import Host, PendingRecord
from store.message_store import MessageStore
from store.opening import StoreOptions
from structured_streaming import reput as reput_job
from structured_streaming.errors import UnreachableError
from structured_streaming.reput_options import ReputOptions
from structured_streaming.source.access import Access
from structured_streaming.source.remote import BrokerLog
from tests.support.lakes.empty import empty_lake
from tests.support.waiting import LIMIT_S

WITHOUT_SPARK = """
import json, sys
sys.modules |= dict.fromkeys(("pyspark", "delta", "fastavro"))
from typer.testing import CliRunner
from broker_gateway.cli.main import app
done = [CliRunner(env={"COLUMNS": "200"}).invoke(app, each) for each in json.loads(sys.argv[1])]
print(json.dumps([[each.exit_code, each.stderr] for each in done]))
"""
HOST = Host("127.0.0.1", 10911)


@pytest.fixture
def closed_port() -> str:
    """Of this machine, that nobody listens on."""
    return f"127.0.0.1:{free_ports(1)[0]}"


def said(*arguments: str) -> str:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert done.exit_code != 0, done.output
    return done.output


def test_every_command_takes_the_lake_of_the_environment(tmp_path: Path) -> None:
    todo, found = [typer.main.get_command(app)], {}
    while todo:
        command = todo.pop()
        todo += getattr(command, "commands", {}).values()
        found |= {
            (command.callback, each.name): each.envvar for each in command.params if "--lake" in each.opts
        }
    assert len(found) > 15
    assert set(found.values()) == {"LAKEBROKER_LAKE"}, found
    lake = str(empty_lake(str(tmp_path / "lake")))
    done = CliRunner(env={"LAKEBROKER_LAKE": lake}).invoke(
        app, ["sql", "--json", "SELECT count(*) AS n FROM messages"]
    )
    assert done.stdout == '[{"n": 0}]\n', done.output
    assert "Missing option '--lake'" in said("sql", "SELECT 1")


def test_a_lake_in_a_folder_is_made_without_spark(tmp_path: Path) -> None:
    lake = ["--lake", str(tmp_path / "lake")]
    asked = [["init", *lake], ["sql", *lake, "SELECT count(*) FROM messages"], ["maintain", *lake]]
    ran = [sys.executable, "-c", WITHOUT_SPARK, json.dumps([*asked, ["init", "--lake", "main.lake"]])]
    done = subprocess.run(ran, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    *made, (_, refused) = json.loads(done.stdout)
    assert [status for status, _ in made] == [0, 0, 0], made
    assert refused.startswith(
        "lakebroker: init of main.lake, which is a schema of a catalog, needs pyspark, which is not installed"
    )


def test_a_gateway_without_a_port_is_refused() -> None:
    assert "write it as host:port" in said("topic", "list", "--gateway", "localhost")


def test_nobody_at_an_address_is_said_in_a_sentence(closed_port: str) -> None:
    text = said("topic", "list", "--gateway", closed_port)
    assert text.startswith(f"lakebroker: no gateway at {closed_port}: connection refused; --gateway takes")
    assert failed("h:1", "UNAVAILABLE", "stopping") == "the gateway at h:1 answered UNAVAILABLE: stopping"


@pytest.mark.parametrize(
    "details",
    [
        "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:10911: Socket closed",
        "errors resolving nosuchhost.example:80: [field:hostname lookup error: Domain name not found]",
        "DNS resolution failed for nosuchhost.example:80: C-ares status is not ARES_SUCCESS",
    ],
)
def test_where_nobody_answers_the_grpc_port_is_named(details: str) -> None:
    assert failed("h:1", "UNAVAILABLE", details) == (
        f"nobody answers gRPC at h:1 ({details}); --gateway takes the host and gRPC port of a gateway "
        "(grpcServerPort, 8081 unless it is set)"
    )


def test_a_server_of_another_protocol_did_not_answer() -> None:
    def close_each() -> None:
        while True:
            try:
                taken, _ = server.accept()
            except OSError:  # the test is over
                return
            taken.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        closing = threading.Thread(target=close_each)
        closing.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        text = said("topic", "list", "--gateway", address)
        server.shutdown(socket.SHUT_RDWR)
    closing.join()
    assert text.startswith(f"lakebroker: nobody answers gRPC at {address} (")
    assert "8081" in text


def test_no_answer_in_time_is_not_called_one() -> None:
    assert failed("h:1", "DEADLINE_EXCEEDED", "Deadline Exceeded").startswith(
        "nobody answered at h:1 within 10 s; --gateway takes"
    )
    assert failed("h:1", "DEADLINE_EXCEEDED", "too long") == (
        "the gateway at h:1 answered DEADLINE_EXCEEDED: too long"
    )


def test_a_broker_without_a_port_is_refused(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert "write it as host:port" in said("reput", "--brokers", "127.0.0.1", "--lake", str(lake))
    assert not lake.exists()


def test_a_store_that_does_not_exist(tmp_path: Path) -> None:
    store = tmp_path / "nostore"
    text = said("reput", "--store", str(store), "--lake", str(tmp_path / "lake"))
    assert f"{store} does not exist" in text
    assert not (tmp_path / "lake").exists()


def test_a_run_that_ends_by_itself_makes_no_lake_when_nobody_answers(
    tmp_path: Path, closed_port: str
) -> None:
    lake = tmp_path / "lake"
    assert closed_port in said("reput", "--once", "--brokers", closed_port, "--lake", str(lake))
    assert not lake.exists()


def test_damage_is_counted_and_its_file_named(tmp_path: Path) -> None:
    store = MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=1 << 18)
    )
    appended = store.append([PendingRecord("t", 0, b"body" * 20, b"", 1, HOST.packed) for _ in range(3)])
    store.close()
    segment = tmp_path / "commitlog" / f"{0:020d}"
    with segment.open("r+b") as file:
        file.seek(appended[1].physical_offset + appended[1].size // 2)
        file.write(b"\xff\xff")
    text = said("store", "verify", str(tmp_path))
    assert "1 place is damaged" in text
    assert f"{appended[1].physical_offset} in {segment}: " in text


def test_a_time_is_read_by_people() -> None:
    assert when(1_700_000_000_000, 1_700_000_003.2) == "2023-11-14 22:13:20 UTC, 3 s ago"
    assert when(0, 1_700_000_003.2) == "never"


def test_the_types_of_a_topic_are_listed() -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["topic", "create", "--help"])
    assert "NORMAL, FIFO, DELAY, TRANSACTION, LITE or PRIORITY" in " ".join(done.output.split())


def test_nobody_at_a_brokers_address_is_said_in_a_sentence(closed_port: str) -> None:
    log = BrokerLog(closed_port, Access())
    with pytest.raises(UnreachableError, match=f"^no broker at {closed_port}: connection refused$"):
        log.describe()
    log.close()


SQL = "pip install 'lakebroker[sql]'"
SPARK = "pip install 'lakebroker[spark]'; it runs on a JDK 17 or later"


@pytest.mark.parametrize(
    ("missing", "options", "says"),
    [
        (("deltalake",), (), f"sql needs deltalake, which is not installed: {SQL}"),
        (("duckdb", "pyspark"), (), f"sql needs duckdb, which is not installed: {SQL}"),
        (
            ("duckdb_extension_delta",),
            ("--engine", "duckdb"),
            f"sql needs duckdb_extension_delta, which is not installed: {SQL}",
        ),
        (
            ("pyspark",),
            ("--engine", "spark"),
            f"sql --engine spark needs pyspark, which is not installed: {SPARK}",
        ),
        (
            ("pyspark",),
            ("--write",),
            f"sql: --write changes tables, which needs pyspark, which is not installed: {SPARK}",
        ),
    ],
)
def test_a_package_that_is_missing_comes_with_a_command_that_works(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], options: tuple[str, ...], says: str
) -> None:
    for each in missing:
        monkeypatch.setitem(sys.modules, each, None)
    assert said("sql", "--lake", "lake", *options, "SELECT 1") == f"lakebroker: {says}\n"


def test_what_only_spark_does_is_not_asked_of_duckdb() -> None:
    text = said("sql", "--lake", "lake", "--engine", "duckdb", "--write", "SELECT 1")
    assert text == "lakebroker: --write changes tables, which is Spark's: leave out --engine duckdb\n"
    text = said("sql", "--lake", "main.lake", "--engine", "duckdb", "SELECT 1")
    assert (
        text
        == "lakebroker: main.lake is a schema of a catalog, which is Spark's: leave out --engine duckdb\n"
    )


def test_the_version_is_the_packages() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"lakebroker {version('lakebroker')}\n")


def test_a_file_that_cannot_be_read_is_named_once(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert said("gateway", "-c", str(missing)) == (
        f"lakebroker: the configuration file {missing} cannot be read: No such file or directory\n"
    )
    assert said("topic", "list", "--token-file", str(missing)) == (
        f"lakebroker: --token-file {missing} cannot be read: No such file or directory\n"
    )


def test_all_bad_options_are_named(tmp_path: Path) -> None:
    bad = {
        "flushDiskType": "XX",
        "deleteWhen": "99",
        "listenPort": "many",
        "brokerIP1": "localhost",
        "traceOn": "yes",
    }
    settings = settings_of(bad)
    text = said("gateway", "--store", str(tmp_path / "store"), *settings)
    for name, value in bad.items():
        assert text.count(f"option {name}={value}: ") == 1
    assert len(text.splitlines()) == len(bad)


def test_what_is_allowed_is_said_once() -> None:
    assert (
        said("gateway", "--transport", "x") == "lakebroker: option lakeTransport=x: allowed: http2, grpcio\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_reput_that_is_stopped_before_it_reads_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(reput_job, "checked", lambda options: os.kill(os.getpid(), number))
    reput = ["reput", "--brokers", "127.0.0.1:1", "--lake", str(tmp_path / "lake")]
    line = f"lakebroker: stopped by {number.name} before it began to read"
    done = CliRunner().invoke(app, [*reput, "--once"])
    assert (done.exit_code, done.stderr) == (128 + number, f"{line}; run it again\n")
    done = CliRunner().invoke(app, reput)
    assert (done.exit_code, done.stderr) == (0, f"{line}\n")
    assert not (tmp_path / "lake").exists()


def test_options_of_a_reput_arrive_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[ReputOptions, str, str]] = []
    monkeypatch.setattr(
        reput_job,
        "run_reput",
        lambda options, _on_batch, master, *, driver_host, **_: started.append(
            (options, master, driver_host)
        ),
    )
    reput = ["reput", "--store", str(tmp_path), "--lake", "lake"]
    given = [
        "--on-gap=continue", "--target-freshness=5s", "--target-file-size=1MiB", "--trigger=2s", "--tables=messages",
        "--without-bodies=a*", "--batch-bytes=2000000", "--message-delay-level=1s", "--sink=spark", "--staging=there",
        "--master=spark://h:7077", "--driver-host=10.0.0.1", "--once",
    ]  # fmt: skip
    done = CliRunner().invoke(app, [*reput, *given])
    assert done.exit_code == 0, done.output
    assert started == [
        (
            ReputOptions(
                "lake",
                str(tmp_path),
                trigger="2000 milliseconds",
                target_freshness_s=5.0,
                target_file_size=1 << 20,
                once=True,
                max_bytes=2_000_000,
                message_delay_level="1s",
                tables="messages",
                without_bodies="a*",
                on_gap="continue",
                sink="spark",
                staging="there",
            ),
            "spark://h:7077",
            "10.0.0.1",
        )
    ]
    for option, value, allowed in (
        ("--on-gap", "maybe", "stop or continue"),
        ("--sink", "x", "delta or spark"),
    ):
        done = CliRunner().invoke(app, [*reput, option, value])
        assert (done.exit_code, done.stderr) == (2, f"lakebroker: {option} {value}: give {allowed}\n")
    assert len(started) == 1


def test_brokers_that_do_not_answer_are_named_once(tmp_path: Path) -> None:
    closed = [f"127.0.0.1:{each}" for each in free_ports(2)]
    text = said("reput", "--once", "--brokers", ",".join(closed), "--lake", str(tmp_path / "lake"))
    assert (
        text
        == "lakebroker: " + "; ".join(f"no broker at {each}: connection refused" for each in closed) + "\n"
    )
