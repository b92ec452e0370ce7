"""`lakebroker send` and `lakebroker recall`: messages of every type, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import admin_pb2 as admin
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_pb.apache.rocketmq.v2 import service_pb2 as rpc
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import Gateway
from tests.support.brokers.gateways import receive_all, run
from tests.support.packages.installed import found_by_processes, install

TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "LITE")
_RULES = """
from broker_gateway.api.extensions import RefusedError


class NoEnds:
    def __init__(self, config):
        pass

    def before(self, rpc):
        if rpc.path.endswith("/EndTransaction"):
            raise RefusedError("transactions stay open")

    def after(self, rpc, outcome):
        pass
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    options = {**OPTIONS, "recallMessageEnable": "true", "lakeAutoCreateTopics": "false"}
    with Gateway(tmp_path_factory.mktemp("gateway"), **options) as gateway:
        for kind in TYPES:
            run(gateway, "topic", "create", kind.lower(), "--type", kind, "--queues", "4")
        yield gateway


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    client = Client(gateway.address)
    yield client
    client.close()


def sent(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    (row,) = json.loads(run(gateway, "send", *arguments, "--json").stdout)
    found: dict[str, Any] = row
    return found


def said(gateway: Gateway, *arguments: str, status: int = 2) -> str:
    done = run(gateway, *arguments, status=status)
    assert done.stdout == ""
    assert done.stderr.startswith("lakebroker: ")
    return done.stderr


def test_a_message_of_no_other_type_is_normal(gateway: Gateway, client: Client, name: str) -> None:
    row = sent(gateway, "normal", "x", "--tag", "a", "--key", "k", "--key", "l", "--property", "n=1")
    assert row == {"topic": "normal", "type": "NORMAL", "message_id": row["message_id"]}
    (found,) = receive_all(client, "normal", name, 1, settle=True)
    system = found.system_properties
    assert (system.message_type, system.message_id) == (pb.NORMAL, row["message_id"])
    assert (system.tag, list(system.keys), dict(found.user_properties)) == ("a", ["k", "l"], {"n": "1"})


def test_a_message_group_is_of_a_fifo_message(gateway: Gateway, client: Client, name: str) -> None:
    run(gateway, "group", "create", name, "--fifo")
    for number in range(3):
        assert sent(gateway, "fifo", f"{number}", "--message-group", "order-1")["type"] == "FIFO"
    found = receive_all(client, "fifo", name, 3, settle=True)
    assert [each.body for each in found] == [b"0", b"1", b"2"]
    assert {each.system_properties.message_group for each in found} == {"order-1"}


@pytest.mark.parametrize("how", ["--delay", "--deliver-at"])
def test_a_delay_or_a_time_is_of_a_delayed_message(
    gateway: Gateway, client: Client, name: str, how: str
) -> None:
    run(gateway, "topic", "create", name, "--type", "DELAY")
    due = datetime.now(UTC) + timedelta(seconds=1)
    row = sent(gateway, name, "x", how, "1s" if how == "--delay" else due.isoformat())
    assert row["type"] == "DELAY"
    (found,) = receive_all(client, name, name, 1, settle=True)
    assert datetime.now(UTC) >= due
    asked_for = found.system_properties.delivery_timestamp.ToDatetime(tzinfo=UTC)
    if how == "--deliver-at":
        assert asked_for == due.replace(microsecond=due.microsecond // 1000 * 1000)
    else:
        assert due - timedelta(milliseconds=1) <= asked_for <= datetime.now(UTC)


def test_a_delayed_message_is_taken_back(gateway: Gateway) -> None:
    row = sent(gateway, "delay", "never", "--delay", "1h")
    assert json.loads(run(gateway, "recall", "delay", row["recall_handle"], "--json").stdout) == [
        {"topic": "delay", "message_id": row["message_id"], "recalled": True}
    ]
    due = datetime.now(UTC) + timedelta(hours=1)
    assert sent(gateway, "delay", "never", "--deliver-at", due.isoformat())["recall_handle"]
    again = said(gateway, "recall", "delay", row["recall_handle"], status=1)
    assert "answered RecallMessage with BAD_REQUEST" in again
    told = run(gateway, "send", "delay", "never", "--delay", "1h").stdout.splitlines()
    words = told[-1].partition("lakebroker ")[2].split()
    assert words[:2] == ["recall", "delay"]
    assert "yes" in run(gateway, *words).stdout
    gone = said(gateway, "recall", "nobody", row["recall_handle"], status=1)
    assert "TOPIC_NOT_FOUND" in gone


def test_a_time_that_is_past_is_now(gateway: Gateway, client: Client, name: str) -> None:
    run(gateway, "topic", "create", name, "--type", "DELAY")
    row = sent(gateway, name, "x", "--deliver-at", "2026-01-01T00:00")
    assert row["recall_handle"] == "", "nothing waits that could be taken back"
    assert len(receive_all(client, name, name, 1, settle=True)) == 1


def test_a_priority(gateway: Gateway, client: Client, name: str) -> None:
    for priority in ("0", "7", "2"):
        assert sent(gateway, "priority", priority, "--priority", priority)["type"] == "PRIORITY"
    found = receive_all(client, "priority", name, 3, settle=True)
    assert [each.body for each in found] == [b"7", b"2", b"0"]
    assert [each.system_properties.priority for each in found] == [7, 2, 0]


def test_a_lite_topic(gateway: Gateway, client: Client, name: str) -> None:
    row = sent(gateway, "lite", "x", "--lite-topic", name)
    assert row["type"] == "LITE"
    (found,) = json.loads(run(gateway, "message", row["message_id"], "--topic", "lite", "--json").stdout)
    assert found["body"] == "x"
    asked = admin.ListMessageRequest(topic=pb.Resource(name="lite"), lite_topic=name)
    assert [each.body for each in client.admin("QueryMessage", asked).messages] == [b"x"]


def test_a_transaction_is_committed_or_rolled_back(gateway: Gateway, client: Client, name: str) -> None:
    run(gateway, "topic", "create", name, "--type", "TRANSACTION")
    gone = sent(gateway, name, "gone", "--transaction", "rollback")
    kept = sent(gateway, name, "kept", "--transaction", "commit")
    due = datetime.now(UTC) + timedelta(seconds=1)
    later = sent(gateway, name, "later", "--transaction", "commit", "--delay", "1s")
    assert [each["transaction"] for each in (gone, kept, later)] == ["rolled back", "committed", "committed"]
    assert {each["type"] for each in (gone, kept, later)} == {"TRANSACTION"}
    found = receive_all(client, name, name, 2, settle=True)
    assert datetime.now(UTC) >= due
    assert sorted(each.body for each in found) == [b"kept", b"later"]
    for row, resolution, code in (
        (kept, pb.COMMIT, pb.OK),
        (kept, pb.ROLLBACK, pb.INVALID_TRANSACTION_ID),
        (gone, pb.COMMIT, pb.INVALID_TRANSACTION_ID),
    ):
        request = rpc.EndTransactionRequest(
            topic=pb.Resource(name=name),
            message_id=row["message_id"],
            transaction_id=row["message_id"],
            resolution=resolution,
        )
        assert client.call("EndTransaction", request).status.code == code


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            ("--message-group", "g", "--delay", "30s"),
            "--message-group g makes it FIFO, --delay 30s makes it DELAY: leave all but one of them out",
        ),
        (
            ("--message-group", "g", "--transaction", "commit", "--deliver-at", "2036-01-01"),
            "--message-group g makes it FIFO, --transaction commit makes it TRANSACTION",
        ),
        (
            ("--priority", "0", "--deliver-at", "2036-01-01"),
            "--deliver-at 2036-01-01 makes it DELAY, --priority 0 makes it PRIORITY",
        ),
        (("--lite-topic", "l", "--priority", "3"), "--priority 3 makes it PRIORITY, --lite-topic l makes it LITE"),
        (
            ("--delay", "1s", "--deliver-at", "2036-01-01"),
            "--delay 1s and --deliver-at 2036-01-01 both say when: leave one of them out",
        ),
        (("--delay", "soon"), "--delay soon: write it as 500ms, 1s, 2m, 1h or 7d"),
        (("--deliver-at", "soon"), "--deliver-at soon is no time; write one such as"),
        (("--priority", "-1"), "--priority -1 is outside of 0 to 2147483647"),
        (("--transaction", "maybe"), "--transaction 'maybe' is unknown: use commit or rollback"),
        (("--transaction", ""), "--transaction '' is unknown: use commit or rollback"),
        (("--delay", ""), "--delay : write it as 500ms"),
        (("--deliver-at", ""), "--deliver-at is empty: write a time such as"),
        (("--property", "n"), "--property n: write it as name=value"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together_are_named(options: tuple[str, ...], why: str) -> None:
    """Nobody is asked: there is no gateway."""
    done = CliRunner().invoke(app, ["send", "t", "x", *options, "--gateway", "127.0.0.1:1"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert why in done.stderr


@pytest.mark.parametrize(
    ("topic", "options", "why"),
    [
        (
            "normal",
            ("--priority", "1"),
            "accepts NORMAL, not PRIORITY messages; send one of these, or let it take another",
        ),
        ("delay", (), "accepts DELAY, not NORMAL messages"),
        ("fifo", ("--message-group", ""), "ILLEGAL_MESSAGE_GROUP"),
        ("lite", ("--lite-topic", ""), "ILLEGAL_LITE_TOPIC"),
        ("delay", ("--delay", "900d"), "ILLEGAL_DELIVERY_TIME"),
        ("delay", ("--delay", "999999999d"), "ILLEGAL_DELIVERY_TIME"),
        ("delay", ("--deliver-at", "1969-01-01"), "ILLEGAL_DELIVERY_TIME"),
        ("nobody", ("--delay", "1s"), "TOPIC_NOT_FOUND"),
        ("transaction", ("--transaction", "commit", "--delay", "900d"), "ILLEGAL_DELIVERY_TIME"),
    ],
)
def test_what_the_gateway_refuses_is_said(
    gateway: Gateway, topic: str, options: tuple[str, ...], why: str
) -> None:
    assert why in said(gateway, "send", topic, "x", *options, status=1)


def test_a_half_that_cannot_be_ended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    install(site, "no_ends", _RULES, {"lakebroker.interceptors": {"ends": "no_ends:NoEnds"}})
    found_by_processes(site, monkeypatch)
    with Gateway(tmp_path / "gateway", **OPTIONS) as gateway:
        run(gateway, "topic", "create", "transaction", "--type", "TRANSACTION")
        told = said(gateway, "send", "transaction", "x", "--transaction", "commit", status=1)
    assert "transactions stay open" in told
    assert "is stored, and may not have ended" in told
