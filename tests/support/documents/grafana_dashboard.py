"""The Grafana dashboard as tests ask it: its panels, their queries and variables, with values put in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lakebroker_testing.gateway import ROOT

FILE = ROOT / "deploy" / "grafana" / "lakebroker.json"


@dataclass(frozen=True, slots=True)
class Query:
    """One of a panel's: PromQL with variables, and the legend, which names labels of the answer as {{label}}."""

    panel: str
    expression: str
    legend: str

    def labels(self) -> set[str]:
        """Those that the legend names."""
        return set(re.findall(r"{{(\w+)}}", self.legend))

    def with_values(self, values: Mapping[str, str]) -> str:
        """PromQL, with `values` in place of variables. Raises KeyError for a variable that has none."""
        return re.sub(r"\$(\w+)", lambda found: values[found[1]], self.expression)


def dashboard() -> dict[str, Any]:
    """As it is in the file."""
    loaded: dict[str, Any] = json.loads(FILE.read_text())
    return loaded


def queries(of: dict[str, Any]) -> Iterator[Query]:
    """Of all panels, from top to bottom."""
    for panel in of["panels"]:
        for target in panel.get("targets", []):
            yield Query(panel["title"], target["expr"], target["legendFormat"])


def variables(of: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Of each variable that asks Prometheus: the series and the label whose values it takes."""
    found = {}
    for variable in of["templating"]["list"]:
        if variable["type"] == "query":
            taken = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert taken is not None, variable["query"]
            found[variable["name"]] = taken[1], taken[2]
    return found


def names(text: str) -> set[str]:
    """Metrics that PromQL asks for."""
    return set(re.findall(r"\b(?:lakebroker|rocketmq|process)_\w+", text))
