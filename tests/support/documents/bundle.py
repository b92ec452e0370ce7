"""The Databricks bundle, read without a workspace and strictly: what `databricks bundle validate` passes over with a warning is an error here.

`Bundle.read(sources(), "prod", GIVEN)` merges files and target, resolves references, and reads each resource into the class
that `databricks-bundles` has for its kind. `Bundle.resources["jobs"]["reput"]` is then as it would be deployed.
"""

from __future__ import annotations

import copy
import functools
import importlib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer.main
import yaml

from broker_gateway.cli.main import app

ROOT = Path(__file__).parents[3]
MAIN = ROOT / "databricks.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
KINDS = {
    "alerts": "Alert",
    "apps": "App",
    "dashboards": "Dashboard",
    "jobs": "Job",
    "pipelines": "Pipeline",
    "schemas": "Schema",
    "volumes": "Volume",
}
"""Classes of `databricks.bundles`, imported when a bundle is read: their hundreds of modules take half a second."""
GIVEN = {"brokers": "broker-a:8081,broker-b:8081", "readers": "analysts", "service_principal": "0a1b-2c3d"}
"""Variables without a default."""
DEPLOYED = {"id": "<id of {}>", "url": "<url of {}>"}
"""Fields that a resource has once it is there."""
WORKSPACE = {"current_user": {"userName": "someone@example.com", "short_name": "someone"}}
NOTEBOOK_VARIABLES = {"LAKEBROKER_TOKEN", "LAKEBROKER_TLS_CA"}
"""Of the environment, beside the parameters of the notebooks."""
TAGS = {"application"}
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
_DEPTH = 5

Sources = dict[Path, dict[str, Any]]


class BundleError(Exception):
    """What is wrong, and where."""


@dataclass(kw_only=True)
class _About:
    name: str
    databricks_cli_version: str


@dataclass(kw_only=True)
class _Sync:
    paths: list[str]
    include: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class _Artifact:
    type: str
    build: str
    path: str


@dataclass(kw_only=True)
class _Lookup:
    warehouse: str


@dataclass(kw_only=True)
class _Variable:
    description: str
    default: Any = None
    type: str = "string"
    lookup: _Lookup | None = None


@dataclass(kw_only=True)
class _Workspace:
    root_path: str


@dataclass(kw_only=True)
class _Permission:
    level: str
    group_name: str | None = None
    service_principal_name: str | None = None


@dataclass(kw_only=True)
class _Target:
    mode: str
    default: bool = False
    workspace: _Workspace | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    permissions: list[_Permission] = field(default_factory=list)
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Main:
    """`databricks.yml`, for which the package has no class: the keys that are used here, by the documentation."""

    bundle: _About
    include: list[str]
    sync: _Sync
    artifacts: dict[str, _Artifact]
    variables: dict[str, _Variable]
    targets: dict[str, _Target]


@dataclass(kw_only=True)
class _Included:
    resources: dict[str, dict[str, Any]]


class _UniqueKeys(yaml.CSafeLoader):
    """Refuses a key that is there twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        if len(set(keys)) < len(keys):
            raise BundleError(f"a key is there twice: {sorted(keys)}, {node.start_mark}")
        return super().construct_mapping(node, deep)


def sources(*more: Path) -> Sources:
    """The bundle's files as they are: `databricks.yml`, what it includes, and others."""
    main = _loaded(MAIN)
    found = {MAIN: main}
    for pattern in main["include"]:
        matched = sorted(ROOT.glob(pattern))
        if not matched:
            raise BundleError(f"include {pattern}: no such file")
        found |= {path: _loaded(path) for path in matched}
    return found | {path: _loaded(path) for path in more}


def _loaded(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load(path.read_text(), _UniqueKeys)
    return loaded


@dataclass
class Bundle:
    """A target of the bundle, resolved."""

    target: str
    resources: dict[str, dict[str, dict[str, Any]]]
    files: dict[tuple[str, str], Path]
    """Where each resource is written: kind and key."""
    used: set[str]
    """Variables that something refers to."""

    @classmethod
    def read(cls, files: Sources, target: str, given: Mapping[str, Any] = GIVEN) -> Bundle:
        """Raises BundleError."""
        main = _into(_Main, files[MAIN], MAIN.name)
        if target not in main.targets:
            raise BundleError(f"target {target}: there is none")
        written, places = _resources(files)
        chosen = main.targets[target]
        overridden = files[MAIN]["targets"][target].get("resources", {})
        for kind, each in overridden.items():
            for key, changed in each.items():
                if key not in written.get(kind, {}):
                    raise BundleError(f"target {target}: there is no resource {kind}.{key}")
                written[kind][key] = _merged(written[kind][key], changed)
        values = _Values(main, target, {**_defaults(main, chosen), **given}, written)
        resolved = {
            kind: {key: values.resolved(value) for key, value in each.items()}
            for kind, each in written.items()
        }
        values.resolved([permission.__dict__ for permission in chosen.permissions])
        if chosen.workspace is not None:
            values.resolved(chosen.workspace.root_path)
        bundle = cls(target, resolved, places, values.used)
        for kind, each in resolved.items():
            for key, value in each.items():
                described = getattr(importlib.import_module(f"databricks.bundles.{kind}"), KINDS[kind])
                _into(described, value, f"{kind}.{key}")
        bundle.check()
        return bundle

    def tasks(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Each with its job's key and job."""
        for key, job in self.resources["jobs"].items():
            for task in job["tasks"]:
                yield key, job, task

    def commands(self) -> dict[str, tuple[list[str], dict[str, str]]]:
        """Of the tasks that run lakebroker: the parameters, and the environment of the cluster, by command."""
        found = {}
        for _, job, task in self.tasks():
            if "python_wheel_task" in task:
                parameters = task["python_wheel_task"]["parameters"]
                found[parameters[0]] = parameters, cluster_of(job, task).get("spark_env_vars", {})
        return found

    def check(self) -> None:
        for _, job, task in self.tasks():
            _check_cluster(job, task)
            if "python_wheel_task" in task:
                wheel = task["python_wheel_task"]
                if wheel["package_name"] != PROJECT["name"] or wheel["entry_point"] not in PROJECT["scripts"]:
                    raise BundleError(
                        f"there is no entry point {wheel['package_name']}: {wheel['entry_point']}"
                    )
                check_command(wheel["parameters"])
        for deployed in self.resources.get("apps", {}).values():
            check_command(deployed["config"]["command"][1:])
        for (kind, key), place in self.files.items():
            resource = self.resources[kind][key]
            for value in _paths(resource):
                if not (place.parent / value).exists():
                    raise BundleError(f"{kind}.{key}: there is no {value} beside {place}")
            for name in ("tags", "custom_tags"):
                for tags in _values_of(resource, name):
                    if set(tags) != TAGS:
                        raise BundleError(f"{kind}.{key}: {name} {sorted(tags)}, not {sorted(TAGS)}")
        for key, pipeline in self.resources.get("pipelines", {}).items():
            place = self.files["pipelines", key].parent
            code = "".join((place / library["file"]["path"]).read_text() for library in pipeline["libraries"])
            asked = set(re.findall(r"conf\.get\(\"([^\"]+)\"\)", code))
            if asked != set(pipeline["configuration"]):
                raise BundleError(f"pipelines.{key}: its code asks for {sorted(asked)}")
        for key, each in self.resources.get("apps", {}).items():
            brought = {resource["name"] for resource in each["resources"]}
            for variable in each["config"]["env"]:
                if variable["name"] not in NOTEBOOK_VARIABLES:
                    raise BundleError(f"apps.{key}: nothing reads {variable['name']}")
                if variable.get("value_from", next(iter(brought))) not in brought:
                    raise BundleError(f"apps.{key}: there is no resource {variable['value_from']}")


def check_command(arguments: Sequence[str]) -> set[str]:
    """Parses the arguments as the command does; returns the variables of the environment that it reads. Raises BundleError."""
    return _parsed(tuple(arguments))


@functools.cache
def _parsed(arguments: tuple[str, ...]) -> set[str]:
    group = _commands()
    name, *options = arguments
    if name not in group.commands:
        raise BundleError(f"there is no command {name}")
    command = group.commands[name]
    try:
        command.make_context(name, list(options))
    except Exception as error:
        raise BundleError(f"lakebroker {' '.join(arguments)}: {error}") from error
    return {str(parameter.envvar) for parameter in command.params if parameter.envvar}


@functools.cache
def _commands() -> Any:
    return typer.main.get_command(app)


def cluster_of(job: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    """The new cluster that a task runs on. Raises BundleError."""
    clusters = {each["job_cluster_key"]: each["new_cluster"] for each in job["job_clusters"]}
    if task.get("job_cluster_key") not in clusters:
        raise BundleError(f"task {task['task_key']}: there is no cluster {task.get('job_cluster_key')}")
    found: dict[str, Any] = clusters[task["job_cluster_key"]]
    return found


def _check_cluster(job: dict[str, Any], task: dict[str, Any]) -> None:
    if "pipeline_task" in task:
        return
    cluster = cluster_of(job, task)
    known = set(NOTEBOOK_VARIABLES)
    if "python_wheel_task" in task:
        known = check_command(task["python_wheel_task"]["parameters"])
        known |= {"LAKEBROKER_TOKEN"} if "LAKEBROKER_TOKEN_FILE" in known else set()
    unread = set(cluster.get("spark_env_vars", {})) - known
    if unread:
        raise BundleError(f"task {task['task_key']}: nothing reads {sorted(unread)}")


def _resources(files: Sources) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], Path]]:
    """All resources by kind and key, and where each is written."""
    found: dict[str, dict[str, Any]] = {}
    places: dict[tuple[str, str], Path] = {}
    for path, content in files.items():
        if path == MAIN:
            continue
        _into(_Included, content, path.name)
        for kind, each in content["resources"].items():
            if kind not in KINDS:
                raise BundleError(f"{path.name}: there are no resources of the kind {kind}")
            for key, value in each.items():
                if (kind, key) in places:
                    raise BundleError(f"{path.name}: {kind}.{key} is in {places[kind, key].name}, too")
                places[kind, key] = path
                found.setdefault(kind, {})[key] = copy.deepcopy(value)
    return found, places


def _merged(value: Any, over: Any) -> Any:
    """As a target's settings go over those of the bundle: mappings are merged, lists follow each other."""
    if isinstance(value, dict) and isinstance(over, dict):
        return value | {
            key: _merged(value[key], each) if key in value else each for key, each in over.items()
        }
    return [*value, *over] if isinstance(value, list) and isinstance(over, list) else over


def _defaults(main: _Main, target: _Target) -> dict[str, Any]:
    unknown = {name for each in main.targets.values() for name in each.variables} - set(main.variables)
    if unknown:
        raise BundleError(f"there is no variable {sorted(unknown)}")
    found = {
        name: f"<id of {each.lookup.warehouse}>" if each.lookup else each.default
        for name, each in main.variables.items()
        if each.lookup or each.default is not None
    }
    return found | target.variables


class _Values:
    """What references stand for."""

    def __init__(
        self, main: _Main, target: str, variables: dict[str, Any], resources: dict[str, dict[str, Any]]
    ) -> None:
        self._declared = main.variables
        self._tree = {
            "var": variables,
            "bundle": {"name": main.bundle.name, "target": target},
            "workspace": WORKSPACE,
            "resources": resources,
        }
        self.used: set[str] = set()

    def resolved(self, value: Any, depth: int = 0) -> Any:
        """A value that is one reference alone takes its type."""
        if isinstance(value, dict):
            return {key: self.resolved(each, depth) for key, each in value.items()}
        if isinstance(value, list):
            return [self.resolved(each, depth) for each in value]
        if not isinstance(value, str):
            return value
        if depth > _DEPTH:
            raise BundleError(f"{value}: refers to itself")
        if whole := _REFERENCE.fullmatch(value):
            return self.resolved(self._value(whole[1]), depth + 1)
        made = _REFERENCE.sub(lambda each: str(self.resolved(self._value(each[1]), depth + 1)), value)
        if "${" in made:
            raise BundleError(f"{value}: a reference that does not end")
        return made

    def _value(self, path: str) -> Any:
        names = path.split(".")
        if names[0] == "var" and len(names) == 2:
            if names[1] not in self._declared:
                raise BundleError(f"${{{path}}}: the variable is not declared")
            self.used.add(names[1])
            if names[1] not in self._tree["var"]:
                raise BundleError(f"no value for the required variable {names[1]}")
        value: Any = self._tree
        for number, name in enumerate(names):
            if names[0] == "resources" and number == 3 and name in DEPLOYED and name not in value:
                return DEPLOYED[name].format(".".join(names[1:3]))
            if not isinstance(value, dict) or name not in value:
                raise BundleError(f"${{{path}}}: there is no {name}")
            value = value[name]
        return value


def _into(cls: Any, value: Any, where: str) -> Any:
    """Reads the value into a class, where an unknown key, a missing one or a value of another type fails."""
    from databricks.bundles.core._transform import (
        _transform,  # for classes of our own; theirs have from_dict
    )

    read: Callable[[Any], Any] = getattr(cls, "from_dict", lambda each: _transform(cls, each))
    try:
        return read(copy.deepcopy(value))
    except (ValueError, TypeError, AttributeError, AssertionError) as error:
        raise BundleError(f"{where}: {error}") from error


def _paths(value: Any) -> Iterator[str]:
    """Paths of files that the resource names; a wheel's is where the build puts it."""
    for name in ("notebook_path", "file_path", "source_code_path"):
        yield from _values_of(value, name)
    for each in _values_of(value, "file"):
        yield each["path"]


def _values_of(value: Any, name: str) -> Iterator[Any]:
    """Values of the key at any depth."""
    for _, mapping in mappings(value):
        if name in mapping:
            yield mapping[name]


def mappings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Every mapping at any depth, with the way to it."""
    if isinstance(value, dict):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from mappings(each, (*path, key))
