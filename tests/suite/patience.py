"""A plugin for pytest: `-p tests.suite.patience --patience FACTOR` multiplies the time limit of every test, marked or not.

For machines that other programs keep busy: a limit is there to end what hangs, on a quiet machine.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--patience", metavar="FACTOR", type=float, default=1.0, help="multiplies time limits")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    factor = config.getoption("--patience")
    for item in items:
        marked = item.get_closest_marker("timeout")
        limit = marked.args[0] if marked else config.getini("timeout")
        if limit:
            item.add_marker(pytest.mark.timeout(float(limit) * factor), append=False)
