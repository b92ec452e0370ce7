"""The parameters and variables of the bundle's tasks, read from its files: what the platform would call a command with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from lakebroker_testing.gateway import ROOT

_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


class Bundle:
    """The bundle's files; `variables` are given to it, the others have their defaults."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        whole = yaml.safe_load((ROOT / "databricks.yml").read_text())
        self._given = variables
        self._variables: dict[str, Any] = whole["variables"]
        self._resources: dict[str, Any] = {}
        for pattern in whole["include"]:
            for path in sorted(ROOT.glob(pattern)):
                for kind, named in (yaml.safe_load(path.read_text()).get("resources") or {}).items():
                    self._resources.setdefault(kind, {}).update(named)

    def commands(self) -> list[str]:
        """Those of lakebroker that its tasks run."""
        tasks = [task for job in self._resources["jobs"].values() for task in job["tasks"]]
        return [task["python_wheel_task"]["parameters"][0] for task in tasks if "python_wheel_task" in task]

    def task(self, command: str) -> tuple[list[str], dict[str, str]]:
        """The parameters of the one task that runs a command of lakebroker, and the environment of its cluster."""
        ((job, task),) = [
            (job, task)
            for job in self._resources["jobs"].values()
            for task in job["tasks"]
            if task.get("python_wheel_task", {}).get("parameters", [""])[0] == command
        ]
        clusters = {each["job_cluster_key"]: each["new_cluster"] for each in job.get("job_clusters", [])}
        cluster = clusters.get(task.get("job_cluster_key"), {})
        parameters = [self.resolved(str(each)) for each in task["python_wheel_task"]["parameters"]]
        environment = cluster.get("spark_env_vars") or {}
        return parameters, {name: self.resolved(str(value)) for name, value in environment.items()}

    def resolved(self, text: str) -> str:
        """With what its references are of; an error where one is of nothing."""
        while found := _REFERENCE.search(text):
            text = text[: found.start()] + self._value(found[1]) + text[found.end() :]
        return text

    def _value(self, name: str) -> str:
        kind, *path = name.split(".")
        if kind == "var":
            (variable,) = path
            return str(self._given.get(variable, self._variables[variable].get("default", "")))
        assert kind == "resources", f"{name} is known to a workspace alone"
        value: Any = self._resources
        for each in path:
            value = value[each]
        return str(value)
