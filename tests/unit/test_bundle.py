"""The asset bundle, checked without a workspace: what it names exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from broker_gateway.cli.main import app

ROOT = Path(__file__).parents[2]


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def test_variables_targets_and_entry_point_exist() -> None:
    bundle = load(ROOT / "databricks.yml")
    included = [path for pattern in bundle["include"] for path in ROOT.glob(pattern)]
    assert included
    texts = [(ROOT / "databricks.yml").read_text(), *(path.read_text() for path in included)]
    used = {name for text in texts for name in re.findall(r"\$\{var\.(\w+)\}", text)}
    assert used <= set(bundle["variables"])
    assert set(bundle["variables"]) <= used, "a variable is declared and not used"
    assert bundle["targets"]["dev"] == {"mode": "development", "default": True}
    assert bundle["targets"]["prod"]["mode"] == "production"


@pytest.mark.parametrize("name", ["reput", "maintain"])
def test_the_job_calls_a_command_that_exists_with_options_it_has(name: str) -> None:
    (job,) = load(ROOT / "resources" / f"{name}.job.yml")["resources"]["jobs"].values()
    (task,) = job["tasks"]
    assert task["job_cluster_key"] in {cluster["job_cluster_key"] for cluster in job["job_clusters"]}
    wheel = task["python_wheel_task"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert wheel["package_name"] == project["name"]
    assert wheel["entry_point"] in project["scripts"]
    command, *arguments = wheel["parameters"]
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert option in shown.output
