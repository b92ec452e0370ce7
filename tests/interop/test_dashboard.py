"""Every query of the Grafana dashboard, and every metric of the alerts, has an answer of a real Prometheus that scrapes a gateway and a reput under traffic."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lakebroker_pb.apache.rocketmq.v2 import definition_pb2 as pb
from lakebroker_testing.client import OPTIONS, Client
from lakebroker_testing.gateway import ROOT, Gateway, Reput
from structured_streaming.commit.typed_tables import declare
from structured_streaming.lake import create_tables
from structured_streaming.typed.declaration import JSON, Declaration, Schema
from tests.support.brokers.scraped import metrics_url
from tests.support.brokers.telemetry_client import TelemetryClient, consumer_settings
from tests.support.documents.grafana_dashboard import Query, dashboard, names, queries, variables
from tests.support.machines.prometheus import Prometheus
from tests.support.waiting import wait_until

SCHEMA = '{"type": "object", "properties": {"id": {"type": "integer"}}}'
RULES = ROOT / "resources" / "prometheus" / "lakebroker.rules.yml"
EVERY = {"cluster": ".*", "broker": ".*", "topic": ".*", "group": ".*"}
"""What Grafana puts in for "All"."""
INTERVAL = {"__rate_interval": "10s"}
RIGHTLY_ZERO = {
    "Alerts",
    "Batches left behind",
    "Calls refused",
    "Damage",
    "Event loop",
    "Failures",
    "Messages read from the lake",
    "Not on disk yet",
    "Only in the lake",
    "Quarantine",
    "Reads of the lake",
    "Scheduled tasks: failures",
    "Typed tables behind",
}
"""Panels that may stay at zero while all is well. Every other one has to show something."""

pytestmark = pytest.mark.timeout(900)


class Traffic:
    """Sends, receives, retries, a dead letter, what is delayed and what is pending, a send that fails; two rounds a second."""

    reput_log: Path
    """Of the reput that reads it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        later: dict[str, object] = {"message_type": pb.DELAY}
        in_an_hour = {"seconds": int(time.time()) + 3600}
        assert client.send("later", b"x", delivery_timestamp=in_an_hour, **later).status.code == pb.OK
        assert client.send("orders", b"kept").status.code == pb.OK
        (self._kept,) = client.receive("orders", "billing", invisible_ms=3_600_000)[1]

    def round(self) -> None:
        """More of it."""
        client = self._client
        assert client.send("orders", *[b"x" * 100] * 10).status.code == pb.OK
        assert client.send("orders", b"x", tag="a|b").status.code == pb.ILLEGAL_MESSAGE_TAG
        assert client.send("paid", b"x", message_type=pb.TRANSACTION).status.code == pb.OK
        given_up, *messages = client.receive("orders", "billing", batch=8)[1]
        assert client.dead_letter("orders", "billing", given_up).status.code == pb.OK
        client.ack("orders", "billing", *messages)

    def waits(self, ended: threading.Event) -> None:
        """Receives where nothing comes, until `ended`."""
        while not ended.is_set():
            self._client.receive("later", "billing", wait_ms=2000)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Traffic]]:
    """A Prometheus, and the traffic of what it watches."""
    folder = tmp_path_factory.mktemp("watched")
    lake = folder / "lake"
    declare(create_tables(str(lake)), Declaration("typed", "typed_typed", JSON, (Schema(1, SCHEMA),)))
    options = {
        **OPTIONS,
        "lakeLocation": str(lake),
        "lakeSelfCheckInterval": "5000",
        "lakeWithNamesrv": "false",
    }
    with Gateway(folder / "gateway", **options) as gateway:
        client = Client(gateway.address)
        traffic = Traffic(client)
        arguments = ("--brokers", gateway.address, "--metrics-port", "0", "--trigger", "5s")
        with Reput(lake, folder / "reput.log", *arguments) as reput:
            of_reput = metrics_url(reput).removeprefix("http://").removesuffix("/metrics")
            targets = {"lakebroker": [f"127.0.0.1:{gateway.metrics_port}"], "reput": [of_reput]}
            settings = consumer_settings("billing", "orders")
            with (
                Prometheus(folder / "prometheus", targets, RULES) as prometheus,
                TelemetryClient(gateway.address, "consumer-1", settings),
            ):
                ended = threading.Event()
                waiting = threading.Thread(target=traffic.waits, args=(ended,))
                waiting.start()
                traffic.reput_log = reput.log
                yield prometheus, traffic
                ended.set()
                waiting.join()
        client.close()


def missing(prometheus: Prometheus, query: Query, values: dict[str, str]) -> str:
    """What an answer lacks; nothing where it has something finite, with every label that the legend names, above zero if it must."""
    found = [
        (labels, value)
        for labels, value in prometheus.samples(query.with_values({**values, **INTERVAL}))
        if math.isfinite(value)
    ]
    if not found:
        return "an answer"
    if not all(query.labels() <= set(labels) for labels, _ in found):
        return f"labels {query.labels()}: {found}"
    if query.panel not in RIGHTLY_ZERO and not any(value > 0 for _, value in found):
        return "a value above zero"
    return ""


def assert_answered(prometheus: Prometheus, traffic: Traffic, values: dict[str, str]) -> None:
    """Every query of the dashboard lacks nothing in the end, while traffic runs."""
    left = dict.fromkeys(queries(dashboard()), "an answer")

    def answered() -> bool:
        traffic.round()
        for query in list(left):
            if lacks := missing(prometheus, query, values):
                left[query] = lacks
            else:
                del left[query]
        return not left

    def lacking() -> list[str]:
        return [f"{query.panel} lacks {lacks}: {query.expression}" for query, lacks in left.items()]

    def told() -> str:
        return f"what {lacking()}, of a reput that says {traffic.reput_log.read_text()[-2000:]!r},"

    wait_until(answered, told, every_s=0.5)


def test_every_query_of_every_panel_has_an_answer(watched: tuple[Prometheus, Traffic]) -> None:
    prometheus, traffic = watched
    assert {query.panel for query in queries(dashboard())} >= RIGHTLY_ZERO
    assert_answered(prometheus, traffic, EVERY)


def test_with_one_value_of_each_variable_too(watched: tuple[Prometheus, Traffic]) -> None:
    prometheus, traffic = watched
    chosen = {"cluster": "DefaultCluster", "topic": "orders", "group": "billing"}
    values = dict(EVERY)
    for name, (series, label) in variables(dashboard()).items():
        match = Query("", series, "").with_values(values)
        offered = prometheus.asked(f"label/{label}/values", **{"match[]": match})
        values[name] = chosen.get(name, offered[0])
        assert values[name] in offered
    assert_answered(prometheus, traffic, values)
    of_none = {query for query in queries(dashboard()) if "$group" in query.expression}
    assert all(missing(prometheus, query, {**values, "group": "nobody"}) for query in of_none)


def test_a_query_for_what_nobody_exports_is_found(watched: tuple[Prometheus, Traffic]) -> None:
    prometheus, _ = watched
    for query in queries(dashboard()):
        for name in names(query.expression):
            misspelt = Query(query.panel, query.expression.replace(name, f"{name}_s"), query.legend)
            if query.panel not in RIGHTLY_ZERO:
                assert missing(prometheus, misspelt, EVERY), misspelt


def test_figures_are_what_was_done(watched: tuple[Prometheus, Traffic]) -> None:
    prometheus, _ = watched
    by_panel = {query.panel: query for query in queries(dashboard())}
    for panel, value in (
        ("Brokers", 1.0),
        ("Messages that wait for their time", 1.0),
    ):
        expression = by_panel[panel].with_values({**EVERY, **INTERVAL})
        wait_until(
            lambda expression=expression, value=value: (
                [found for _, found in prometheus.samples(expression)] == [value]
            ),
            panel,
        )


def test_the_alerts_ask_for_what_is_exported(watched: tuple[Prometheus, Traffic]) -> None:
    prometheus, _ = watched
    groups = yaml.safe_load(RULES.read_text())["groups"]
    asked_for = set().union(*(names(rule["expr"]) for group in groups for rule in group["rules"]))
    assert asked_for <= set(prometheus.asked("label/__name__/values"))
    loaded = prometheus.asked("rules")["groups"]
    assert {rule["health"] for group in loaded for rule in group["rules"]} == {"ok"}
