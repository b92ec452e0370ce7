"""With LAKEBROKER_EVIDENCE=1 the outcome and the figures of every test here go to `docs/evidence/faults.json`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

EVIDENCE = bool(os.environ.get("LAKEBROKER_EVIDENCE"))
_FILE = Path(__file__).parents[2] / "docs" / "evidence" / "faults.json"
_results: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.failed:
        _results[report.nodeid] = {
            "outcome": report.outcome,
            "seconds": round(report.duration),
            **dict(report.user_properties),
        }


def pytest_sessionfinish() -> None:
    if EVIDENCE and _results:
        known = json.loads(_FILE.read_text()) if _FILE.exists() else {}
        _FILE.parent.mkdir(parents=True, exist_ok=True)
        _FILE.write_text(json.dumps({**known, **_results}, indent=1, sort_keys=True) + "\n")
