"""How much longer than on a quiet machine tests may take: LAKEBROKER_PATIENCE in the environment, a factor.

As a plugin for pytest, `-p tests.suite.patience` multiplies the time limit of every test by it, marked or not. A limit is there to
end what hangs.
"""

from __future__ import annotations

import os

import pytest

VARIABLE = "LAKEBROKER_PATIENCE"
FACTOR = float(os.environ.get(VARIABLE, "1"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        marked = item.get_closest_marker("timeout")
        limit = marked.args[0] if marked else config.getini("timeout")
        if limit:
            item.add_marker(pytest.mark.timeout(float(limit) * FACTOR), append=False)
