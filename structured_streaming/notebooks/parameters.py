"""The notebooks' parameters: widgets on Databricks, environment variables elsewhere.

| where | how |
|---|---|
| Databricks | a widget of the name; a job's notebook task sets it by `base_parameters` |
| elsewhere, and where the widget is empty | `LAKEBROKER_` and the name in capitals: `LAKEBROKER_TOPIC` |
| neither | the default |
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structured_streaming.notebooks.errors import NotebookError

_DEMO = "demo-output/lake"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter: what it means, its default, and its bounds where it is a number."""

    name: str
    label: str
    default: str = ""
    least: float | None = None
    most: float | None = None

    @property
    def variable(self) -> str:
        """Of the environment."""
        return f"LAKEBROKER_{self.name.upper()}"


PARAMETERS = {
    each.name: each
    for each in (
        Parameter("lake", "Lake: a folder, an object store's URL, or catalog.schema"),
        Parameter("brokers", "Gateways, host:port,…, for what is not in the lake yet; empty: the lake alone"),
        Parameter("key", "Key or message id; empty: an example of the lake"),
        Parameter("topic", "Topic; empty: all"),
        Parameter("group", "Consumer group; empty: all"),
        Parameter("hours", "Hours up to the lake's newest message", "24", 0.1, 24 * 366),
        Parameter("days", "Days to forecast", "90", 1, 3650),
        Parameter("growth_percent", "Growth of the traffic, percent in 30 days", "0", -90, 1000),
        Parameter("keep_hours", "Hours that brokers keep their log (fileReservedTime)", "72", 1, 1_000_000),
        Parameter("disk_price", "Price of 1 GB of a broker's disk in a month", "0.08", 0, 1e6),
        Parameter("lake_price", "Price of 1 GB of the lake's storage in a month", "0.023", 0, 1e6),
        Parameter("currency", "Currency of the prices", "USD"),
    )
}
"""Each is used by the notebooks that name it; prices are examples."""


def read(names: Iterable[str], dbutils: Any = None) -> dict[str, str]:
    """The value of each parameter; with Databricks' `dbutils`, makes their widgets. Raises NotebookError."""
    found = {}
    for name in names:
        parameter = PARAMETERS.get(name)
        if parameter is None:
            raise NotebookError(f"there is no parameter {name!r}; there are {', '.join(PARAMETERS)}")
        value = os.environ.get(parameter.variable, "").strip() or parameter.default
        if dbutils is not None:
            dbutils.widgets.text(name, value, parameter.label)
            value = str(dbutils.widgets.get(name)).strip() or value
        found[name] = value
    return found


def number(values: Mapping[str, str], name: str) -> float:
    """Of a parameter with bounds. Raises NotebookError."""
    parameter = PARAMETERS[name]
    least, most = parameter.least, parameter.most
    assert least is not None
    assert most is not None
    try:
        value = float(values[name])
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise NotebookError(
            f"{name}={values[name]!r} is no number from {least:g} to {most:g}; set the widget {name}, or "
            f"{parameter.variable}"
        )
    return value


def lake_location(given: str) -> str:
    """As given, else the demo's lake, here or in the folder above. Raises NotebookError."""
    if given:
        return given
    for folder in (Path.cwd(), Path.cwd().parent):
        if (folder / _DEMO).is_dir():
            return str(folder / _DEMO)
    raise NotebookError(
        "no lake is named: set LAKEBROKER_LAKE (on Databricks the widget lake) to its folder, its URL in an object store, or "
        "catalog.schema; `make demo` makes one to look at"
    )
