"""`lakebroker message` over a log whose old segments are gone and the lake that has them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import Client
from lakebroker_testing.gateway import Gateway
from tests.support.brokers.gateways import AT_ONCE, BODY, SEGMENT, first_segment
from tests.support.lakes.maintained import reput
from tests.support.waiting import wait_until

COUNT = 40


def run(gateway: Gateway, *arguments: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, ["message", *arguments, "--topic", "orders", "--gateway", gateway.address])
    assert done.exit_code == status, done.output
    return done


def numbers(gateway: Gateway, *arguments: str) -> list[int]:
    rows: list[dict[str, Any]] = json.loads(run(gateway, *arguments, "--json").stdout)
    return [int(key.removeprefix("k")) for row in rows for key in row["keys"]]


def test_old_messages_are_found_in_the_lake(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = {**AT_ONCE, "flushIntervalCommitLog": "50", "lakeLocation": str(lake)}
    with Gateway(tmp_path / "gateway", **options) as gateway:
        client = Client(gateway.address)

        def send(number: int) -> str:
            answer = client.send("orders", BODY, keys=[f"k{number}"])
            assert answer.status.code == pb.OK
            return str(answer.entries[0].message_id)

        ids = [send(number) for number in range(COUNT)]

        def cut() -> bool:
            reput(gateway.store, str(lake))
            return first_segment(gateway) >= 2 * SEGMENT

        wait_until(cut)
        ids += [send(number) for number in range(COUNT, COUNT + 5)]
        everything = list(reversed(range(COUNT + 5)))
        assert numbers(gateway, "--limit", "1000") == everything
        assert numbers(gateway, "--limit", "33") == everything[:33]
        for number in (0, COUNT - 1, COUNT + 4):
            assert numbers(gateway, f"k{number}") == numbers(gateway, ids[number]) == [number]
        assert "no message with id or key 'k999'" in run(gateway, "k999", status=1).stderr

        shutil.move(lake, tmp_path / "away")
        done = run(gateway, "k0", status=1)
        assert done.stdout == ""
        assert "there is no lake at" in done.stderr
        done = run(gateway, f"k{COUNT + 4}", "--json", status=1)
        assert [row["keys"] for row in json.loads(done.stdout)] == [[f"k{COUNT + 4}"]]
        assert "older messages are not listed: the gateway at" in done.stderr
        client.close()
