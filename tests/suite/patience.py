"""How much longer than on a quiet machine tests may take: LAKEBROKER_PATIENCE in the environment, a factor.

As a plugin for pytest, `-p tests.suite.patience` multiplies the time limit of every test by it, marked or not. A limit is there to
end what hangs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "LAKEBROKER_PATIENCE"
FACTOR = float(os.environ.get(VARIABLE, "1"))


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
