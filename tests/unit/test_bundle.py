"""The bundle, checked without a workspace: what it names exists, and no misspelt key goes unnoticed, wherever it stands."""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import subprocess
import typing
from pathlib import Path
from typing import Any

import pytest

from tests.suite.evidence import EVIDENCE
from tests.support.documents.bundle import (
    GIVEN,
    MAIN,
    PROJECT,
    ROOT,
    Bundle,
    BundleError,
    Sources,
    mappings,
    sources,
)
from tests.support.waiting import LIMIT_S

CONSOLE = ROOT / "resources" / "apps" / "console.app.yml"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in sources(CONSOLE))
NAMED_FREELY = {
    ("artifacts",),
    ("targets",),
    *(
        ("resources", kind)
        for kind in ("alerts", "apps", "dashboards", "jobs", "pipelines", "schemas", "volumes")
    ),
}
"""Mappings whose keys are names that the bundle gives; what refers to one of them is checked as a reference."""


@pytest.fixture(scope="module")
def prod() -> Bundle:
    return Bundle.read(sources(), "prod")


@pytest.fixture(scope="module")
def dev() -> Bundle:
    return Bundle.read(sources(), "dev")


def changed(files: Sources, path: Path, way: tuple[Any, ...], value: Any) -> Sources:
    """With another value at that place of the file."""
    if not way:
        return files | {path: value}
    made = files | {path: copy.deepcopy(files[path])}
    place: Any = made[path]
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value
    return made


@pytest.mark.parametrize("name", FILES)
def test_every_misspelt_key_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key of each mapping of the file, one at a time; in the short form once of those that stand in a list."""
    # databricks-bundles evaluates the hints of a class for each value that it reads
    real, kept = typing.get_type_hints, functools.cache(typing.get_type_hints)
    monkeypatch.setattr(
        typing, "get_type_hints", lambda of, **where: real(of, **where) if where else kept(of)
    )
    path = ROOT / name
    files = sources(CONSOLE)

    def refused(tried: Sources) -> bool:
        try:
            return Bundle.read(tried, "prod").used != set(files[MAIN]["variables"])
        except BundleError:
            return True

    assert not refused(files)
    passed, tried, known = [], 0, set[tuple[Any, ...]]()
    for way, mapping in mappings(files[path]):
        for key in mapping if way not in NAMED_FREELY else ():
            place = (*("" if isinstance(step, int) else step for step in way), key)
            if place in known and not EVIDENCE:
                continue
            known.add(place)
            misspelt = {f"{each}_" if each == key else each: value for each, value in mapping.items()}
            tried += 1
            if not refused(changed(files, path, way, misspelt)):
                passed.append((*way, key))
    assert tried >= 5
    assert passed == []


def test_references_and_keys_that_are_there_twice_are_refused(tmp_path: Path) -> None:
    files = sources()
    maintain = ROOT / "resources" / "maintain.job.yml"
    job = ("resources", "jobs", "maintain")
    for way, value, told in (
        ((*job, "description"), "${var.nothing}", "not declared"),
        ((*job, "description"), "${resources.jobs.nothing.name}", "there is no nothing"),
        ((*job, "description"), "${workspace.nothing}", "there is no nothing"),
        ((*job, "tasks", 0, "job_cluster_key"), "nothing", "there is no cluster nothing"),
        ((*job, "tasks", 0, "python_wheel_task", "entry_point"), "nothing", "no entry point"),
        ((*job, "tasks", 0, "python_wheel_task", "parameters"), ["nothing"], "no command nothing"),
        ((*job, "tasks", 0, "python_wheel_task", "parameters", 1), "--lakes", "No such option"),
        (
            (*job, "tasks", 0, "notebook_task"),
            {"notebook_path": "../notebooks/nothing.ipynb"},
            "nothing.ipynb",
        ),
        ((*job, "timeout_seconds"), "an hour", "invalid literal"),
        ((*job, "health", "rules", 0, "op"), "MORE", "MORE"),
    ):
        with pytest.raises(BundleError, match=re.escape(told)):
            Bundle.read(changed(files, maintain, way, value), "prod")
    twice = tmp_path / "twice.yml"
    twice.write_text("resources: {}\nresources: {}\n")
    with pytest.raises(BundleError, match="there twice"):
        sources(twice)
    for name in GIVEN:
        with pytest.raises(BundleError, match=f"required variable {name}"):
            Bundle.read(files, "prod", {key: value for key, value in GIVEN.items() if key != name})


def test_tables_are_in_the_catalog_and_brokers_are_read_with_a_secret(prod: Bundle) -> None:
    (task,) = prod.resources["jobs"]["reput"]["tasks"]
    command = task["python_wheel_task"]["parameters"]
    options = dict(zip(command[1:-1:2], command[2::2], strict=True))
    assert options["--lake"] == "main.lakebroker"
    assert options["--brokers"] == GIVEN["brokers"]
    assert options["--staging"] == "/Volumes/main/lakebroker/staging"
    for _, job, each in prod.tasks():
        assert not {"--master", "--driver-host", "--token-file"} & set(
            each.get("python_wheel_task", {}).get("parameters", ())
        )
        for cluster in job.get("job_clusters", ()):
            settings = cluster["new_cluster"]
            assert "spark_conf" not in settings, "the runtime's own session, with nothing of ours"
            token = settings.get("spark_env_vars", {}).get("LAKEBROKER_TOKEN", "{{secrets/lakebroker/token}}")
            assert token == "{{secrets/lakebroker/token}}"


def test_clusters_get_the_wheel_and_what_its_extra_for_clusters_has(prod: Bundle) -> None:
    extra = set(PROJECT["optional-dependencies"]["cluster"])
    assert not [each for each in extra if each.startswith("pyspark")]
    seen = 0
    for key, _, task in prod.tasks():
        if "pipeline_task" in task:
            continue
        seen += 1
        wheels = [each["whl"] for each in task["libraries"] if "whl" in each]
        assert [prod.files["jobs", key].parent / each for each in wheels] == [
            ROOT / "resources/../dist/*.whl"
        ]
        assert {each["pypi"]["package"] for each in task["libraries"] if "pypi" in each} == extra, key
    assert seen >= 4
    build = sources()[MAIN]["artifacts"]["lakebroker"]["build"]
    assert "--wheel-dir dist" in build


def test_prod_runs_as_a_service_principal_and_tells_of_failures(prod: Bundle, dev: Bundle) -> None:
    for kind in ("jobs", "pipelines", "alerts"):
        for key, each in prod.resources[kind].items():
            assert each["run_as"] == {"service_principal_name": GIVEN["service_principal"]}, key
            assert "run_as" not in dev.resources[kind][key], key
    for key, job in prod.resources["jobs"].items():
        assert job["email_notifications"]["on_failure"] == ["someone@example.com"], key
        assert job["max_concurrent_runs"] == 1, key
        if "continuous" in job:
            assert job["continuous"]["task_retry_mode"] == "ON_FAILURE"
            assert "timeout_seconds" not in job
        else:
            assert job["timeout_seconds"] > 0, key
            assert all(task["max_retries"] > 0 for task in job["tasks"]), key
    for schema in prod.resources["schemas"].values():
        granted = {each["principal"]: each["privileges"] for each in schema["grants"]}
        assert granted == {
            GIVEN["readers"]: ["USE_SCHEMA", "SELECT", "EXECUTE"],
            GIVEN["service_principal"]: ["ALL_PRIVILEGES"],
        }
    told = {"webhooks": [{"id": "0123"}], "notify": "team@example.com"}
    other = Bundle.read(sources(), "prod", {**GIVEN, **told})
    assert other.resources["jobs"]["reput"]["webhook_notifications"] == {"on_failure": [{"id": "0123"}]}


def test_each_notebook_is_a_task(prod: Bundle) -> None:
    tasks = [task for _, _, task in prod.tasks() if "notebook_task" in task]
    named = {(ROOT / "resources" / task["notebook_task"]["notebook_path"]).resolve() for task in tasks}
    assert named == set((ROOT / "notebooks").glob("*.ipynb"))


def test_the_console_is_an_app_with_its_wheel() -> None:
    bundle = Bundle.read(sources(CONSOLE), "prod")
    folder = CONSOLE.parent / bundle.resources["apps"]["console"]["source_code_path"]
    wheel = f"{PROJECT['name']}-{PROJECT['version']}-py3-none-any.whl"
    assert (folder / "requirements.txt").read_text().split()[0] == f"./{wheel}[console]"


def test_the_app_is_given_no_file_on_a_volume_which_it_would_not_see() -> None:
    given = {**GIVEN, "tls_ca": "/Volumes/main/lakebroker/config/ca.pem", "console_tls_ca": "ca.pem"}
    config = Bundle.read(sources(CONSOLE), "prod", given).resources["apps"]["console"]["config"]
    values = {each["name"]: each.get("value") for each in config["env"]}
    assert values["LAKEBROKER_TLS_CA"] == "ca.pem"
    assert not [each for each in (*config["command"], *values.values()) if each and "/Volumes" in each]


def test_the_build_leaves_no_wheel_of_another_version(tmp_path: Path) -> None:
    """With a pip that only makes the file."""
    for folder in ("dist", "resources/apps/console"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "lakebroker-0.0.9-py3-none-any.whl").touch()
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ntouch dist/lakebroker-0.1.0-py3-none-any.whl\n")
    program.chmod(0o755)
    build = sources()[MAIN]["artifacts"]["lakebroker"]["build"]
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", build], cwd=tmp_path, env=environment, check=True, timeout=LIMIT_S)
    for folder in ("dist", "resources/apps/console"):
        assert [each.name for each in (tmp_path / folder).iterdir()] == ["lakebroker-0.1.0-py3-none-any.whl"]


def test_widgets_of_the_dashboard_show_what_its_datasets_have(prod: Bundle) -> None:
    """By the form that dashboards have when they are exported; there is no class for it."""
    path = ROOT / "resources" / prod.resources["dashboards"]["lakebroker"]["file_path"]
    dashboard = json.loads(path.read_text())
    assert set(dashboard) == {"datasets", "pages"}
    datasets = {each["name"] for each in dashboard["datasets"]}
    (page,) = dashboard["pages"]
    shown: set[str] = set()
    taken: set[tuple[int, int]] = set()
    for each in page["layout"]:
        place, widget = each["position"], each["widget"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["width"]) for y in range(place["height"])
        }
        assert max(x for x, _ in cells) < 6, widget["name"]
        assert not cells & taken, widget["name"]
        taken |= cells
        if "textbox_spec" in widget:
            continue
        queries = {query["name"]: query["query"] for query in widget["queries"]}
        shown |= {query["datasetName"] for query in queries.values()}
        spec = widget["spec"]
        assert spec["frame"]["title"], widget["name"]
        fields = {field["name"] for query in queries.values() for field in query.get("fields", ())}
        encoded = [encoding for _, encoding in mappings(spec["encodings"]) if "fieldName" in encoding]
        assert {encoding["fieldName"] for encoding in encoded} == fields, widget["name"]
    assert shown == datasets


def test_the_documentation_names_every_variable() -> None:
    text = (ROOT / "docs" / "databricks.md").read_text()
    assert [name for name in sources()[MAIN]["variables"] if f"`{name}`" not in text] == []
