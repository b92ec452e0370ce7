"""Every metric that the alerts ask for is exported by a real gateway, or a real reput of it, under traffic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, Reput
from structured_streaming.commit.typed_tables import declare
from structured_streaming.lake import create_tables
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.scraped import metrics_url, once_it_says

SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
RULES = ROOT / "resources" / "prometheus" / "lakebroker.rules.yml"

pytestmark = pytest.mark.timeout(900)


def asked_for() -> set[str]:
    """Names in the expressions of the rules."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    text = " ".join(rule["expr"] for group in groups for rule in group["rules"])
    return set(re.findall(r"\b(?:lakebroker|rocketmq)_\w+", text))


def test_the_alerts_ask_for_what_is_exported(tmp_path: Path) -> None:
    lake, wanted = tmp_path / "lake", asked_for()
    declare(create_tables(str(lake)), Declaration("typed", "typed_typed", JSON, (Schema(1, SCHEMA),)))
    of_reput = {name for name in wanted if name.startswith("lakebroker_reput_")}
    assert 3 < len(of_reput) < len(wanted)
    with Gateway(tmp_path / "gateway", **OPTIONS, lakeLocation=str(lake)) as gateway:
        client = Client(gateway.address)
        arguments = ("--brokers", gateway.address, "--metrics-port", "0")
        with Reput(lake, tmp_path / "reput.log", *arguments) as reput:
            assert client.send("t", b"x").status.code == pb.OK
            (message,) = client.receive("t", "g")[1]
            assert client.dead_letter("t", "g", message).status.code == pb.OK
            once_it_says(metrics_url(reput), lambda found: of_reput <= {name for name, _ in found})

            def all_are_there(found: object) -> bool:
                assert (
                    client.send("t", b"x").status.code == pb.OK
                )  # the disk's hours are known while the log grows
                assert isinstance(found, dict)
                return wanted - of_reput <= {name for name, _ in found}

            once_it_says(f"http://127.0.0.1:{gateway.metrics_port}/metrics", all_are_there)
        client.close()
