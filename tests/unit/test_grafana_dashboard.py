"""The Grafana dashboard is one that Grafana 10.1 and later imports: its keys, places and data sources; it asks for documented metrics."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.support.documents.grafana_dashboard import dashboard, names, queries, variables
from tests.support.documents.metrics import documented

BUILT_IN = {"__rate_interval"}
OF_PROMETHEUS = {".annotations.list[0].titleFormat", ".annotations.list[0].textFormat"}
"""Keys that the data source of an annotation takes, not Grafana itself."""
ANSWERED = {"total", "bucket", "sum", "count"}
"""What Prometheus adds to the names of counters, histograms and summaries."""


def lost(given: Any, read: Any, at: str = "") -> list[str]:
    """Keys and values that Grafana's classes did not take, by their path."""
    if isinstance(given, dict) and isinstance(read, dict):
        return [
            found
            for key, value in given.items()
            for found in ([f"{at}.{key}"] if key not in read else lost(value, read[key], f"{at}.{key}"))
        ]
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return [
            found
            for n, (one, other) in enumerate(zip(given, read, strict=True))
            for found in lost(one, other, f"{at}[{n}]")
        ]
    return [] if given == read else [f"{at}: {given!r} is {read!r}"]


def not_taken(given: dict[str, Any]) -> list[str]:
    """Of a dashboard, with what the kinds of its panels and its data source take."""
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(given), cls=JSONEncoder))
    return [path for path in lost(given, read) if path not in OF_PROMETHEUS]


def test_grafana_knows_every_key() -> None:
    assert not_taken(dashboard()) == []


def test_panels_have_ids_of_their_own_and_places_that_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    taken = [
        cell
        for place in places
        for cell in itertools.product(
            range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        )
    ]
    assert len(set(taken)) == len(taken)


def test_each_panel_says_what_is_seen_and_asks_the_chosen_data_source() -> None:
    given = dashboard()
    assert given["templating"]["list"][0]["name"] == "datasource"
    asking = [panel for panel in given["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in asking} == {"${datasource}"}
    assert [panel["title"] for panel in asking if len(panel["description"]) < 40] == []
    assert len({panel["title"] for panel in given["panels"]}) == len(given["panels"])
    assert {"datasource", *variables(given)} == {each["name"] for each in given["templating"]["list"]}
    known = {**dict.fromkeys(variables(given), ""), **dict.fromkeys(BUILT_IN, "")}
    for query in queries(given):
        query.with_values(known)


def test_metrics_are_documented() -> None:
    there = {*documented("Of a broker"), *documented("Of the reput")}
    asked = {name for query in queries(dashboard()) for name in names(query.expression)}
    asked |= {name for series, _ in variables(dashboard()).values() for name in names(series)}
    plain = {name.rpartition("_")[0] if name.rpartition("_")[2] in ANSWERED else name for name in asked}
    assert plain <= there
    assert len(plain) > 50


@pytest.mark.parametrize(
    "path",
    [
        ("panels", 1, "gridpos"),
        ("panels", 1, "targets", 0, "legendformat"),
        ("panels", 1, "fieldConfig", "defaults", "units"),
        ("panels", 1, "options", "colormode"),
        ("panels", 10, "fieldConfig", "defaults", "custom", "fillopacity"),
        ("panels", 10, "options", "tooltip", "modes"),
        ("templating", "list", 1, "include_all"),
        ("time", "since"),
        ("schemaversion",),
    ],
    ids=lambda path: path[-1],
)
def test_a_misspelt_key_is_found(path: tuple[Any, ...]) -> None:
    given = dashboard()
    within: Any = given
    for step in path[:-1]:
        within = within[step]
    within[path[-1]] = 1 if path[-1] != "gridpos" else {}
    assert not_taken(given)
