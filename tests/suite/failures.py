"""A plugin for pytest: `-p tests.suite.failures --failures FILE` appends each failure to a file when it comes, with what was captured.

pytest prints them at its end, which may be an hour later.
"""

from __future__ import annotations

from pathlib import Path

import pytest


class Failures:
    """Hears the reports of a session."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            captured = [f"--- {name} ---\n{text}" for name, text in report.sections]
            text = "\n".join([f"=== {report.nodeid} ({report.when})", report.longreprtext, *captured])
            with self._file.open("a") as file:
                file.write(f"{text}\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failures", metavar="FILE", help="text file that each failure is appended to at once")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--failures")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(Path(file)), "lakebroker-failures")
