"""The rules for Prometheus, by its own promtool: they are valid, and fire when they should and not beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from prometheus_client import generate_latest

from lakebroker_testing.gateway import ROOT
from structured_streaming.commit.report import BatchReport, LogReport
from structured_streaming.reput_metrics import ReputMetrics
from tests.support.machines.prometheus import promtool

RULES = ROOT / "resources" / "prometheus" / "lakebroker.rules.yml"
CASES = Path(__file__).parent / "prometheus" / "rules_test.yml"


def alerts() -> set[str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    done = promtool("test", "rules", str(CASES))
    assert done.returncode == 0, done.stdout
    cases = [each for test in yaml.safe_load(CASES.read_text())["tests"] for each in test["alert_rule_test"]]
    assert {each["alertname"] for each in cases if each["exp_alerts"]} == alerts()


def test_a_rule_that_asks_for_something_else_is_found(tmp_path: Path) -> None:
    """Each rule in turn asks for the contrary of its threshold: one of the cases notices."""
    cases = yaml.safe_load(CASES.read_text())
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            contrary = {**group, "rules": [{**rule, "expr": f"absent({rule['expr']})"}]}
            (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [contrary]}))
            own_cases = {
                **cases,
                "rule_files": [str(tmp_path / "rules.yml")],
                "tests": of_alert(cases, rule["alert"]),
            }
            (tmp_path / "cases.yml").write_text(yaml.safe_dump(own_cases))
            done = promtool("test", "rules", str(tmp_path / "cases.yml"))
            assert done.returncode, rule["alert"]
            assert rule["alert"] in done.stdout


def of_alert(cases: dict[str, Any], alert: str) -> list[dict[str, Any]]:
    """The tests that ask for an alert, without what they ask of others."""
    found = []
    for test in cases["tests"]:
        asked = [each for each in test["alert_rule_test"] if each["alertname"] == alert]
        if asked:
            found.append({**test, "alert_rule_test": asked})
    return found


def test_metrics_of_the_reput_are_named_as_prometheus_names_them() -> None:
    metrics = ReputMetrics()
    metrics.committed(
        BatchReport(1, 3, 4, 0.5, 6, 7, {}, (LogReport("b", 4, 3, 6, 1_700_000_000_000),), {"messages": 0.2})
    )
    done = promtool("check", "metrics", given=generate_latest(metrics.registry).decode())
    assert (done.returncode, done.stdout) == (0, "")
