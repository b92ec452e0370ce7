"""A plugin for pytest: `-p tests.suite.outcomes --outcomes FILE` merges what became of every test into a JSON file.

By the test's id: its outcome, its seconds, the commit it ran on, and the figures that it recorded (`record_property`).
Tests of files that are gone leave the file. With several workers the session that they report to writes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.suite.rounds import ROOT, commit_of


class Outcomes:
    """Collects the reports of a session, of a commit."""

    def __init__(self, file: Path, root: Path, commit: str) -> None:
        self._file = file
        self._root = root
        self._commit = commit
        self._found: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:  # a skip or an error comes from another phase
            self._found[report.nodeid] = {
                "outcome": report.outcome,
                "seconds": round(report.duration),
                "commit": self._commit,
                **dict(report.user_properties),
            }

    def pytest_sessionfinish(self) -> None:
        text = self._file.read_text() if self._file.exists() else ""
        known = json.loads(text or "{}")
        kept = {name: each for name, each in known.items() if (self._root / name.partition("::")[0]).exists()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**kept, **self._found}, indent=1, sort_keys=True) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--outcomes", metavar="FILE", help="JSON file that takes each test's outcome and figures"
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--outcomes")
    if file and not hasattr(config, "workerinput"):
        commit = commit_of(ROOT, allow_dirty=True)
        config.pluginmanager.register(Outcomes(Path(file), config.rootpath, commit), "lakebroker-outcomes")
