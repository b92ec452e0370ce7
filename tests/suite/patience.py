"""How much longer than on a quiet machine tests may take: LAKEBROKER_PATIENCE in the environment, a factor.

As a plugin for pytest, `-p tests.suite.patience` multiplies the time limit of every test by it, marked or not. A limit is there to
end what hangs.
"""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

import pytest

VARIABLE = "LAKEBROKER_PATIENCE"


def _factor(text: str) -> float:
    """Ends the process where it is no factor."""
    with contextlib.suppress(ValueError):
        if 1 <= (factor := float(text)) < math.inf:
            return factor
    raise SystemExit(f"{VARIABLE}={text}: a number of 1 or more is wanted, such as 4")


FACTOR = _factor(os.environ.get(VARIABLE, "1"))


def runnable() -> int:
    """The machine's threads that run or wait for a processor, without the one that asks."""
    stat = Path("/proc/stat").read_text()
    return int(stat.partition("procs_running ")[2].split()[0]) - 1


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items if FACTOR != 1 else []:
        marked = item.get_closest_marker("timeout")
        limit = marked.args[0] if marked else config.getini("timeout")
        if limit:
            item.add_marker(pytest.mark.timeout(float(limit) * FACTOR), append=False)
