"""What Spark's home is for a JVM whose workers run the installed pyspark, and for all others."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pyspark
import pytest
from pyspark.java_gateway import launch_gateway

from lakebroker_testing.prestarted import run
from structured_streaming.errors import SparkStartError
from structured_streaming.jvm_output import jvm_output_to_file
from structured_streaming.workers_python import workers_with_this_python

INSTALLED = Path(pyspark.__file__).parent


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, "")  # as they were is how they are put back
        monkeypatch.delenv(name)
    return monkeypatch


@pytest.mark.parametrize("named", [False, True])
def test_the_home_has_everything_but_the_copy_of_pyspark(
    environment: pytest.MonkeyPatch, named: bool
) -> None:
    if named:
        environment.setenv("SPARK_HOME", str(INSTALLED))
    with workers_with_this_python("local[2]"):
        home = Path(os.environ["SPARK_HOME"])
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
    assert {entry.name for entry in INSTALLED.iterdir()} - {entry.name for entry in home.iterdir()} == {
        "python"
    }
    assert (home / "bin" / "spark-submit").samefile(INSTALLED / "bin" / "spark-submit")
    assert os.environ.get("SPARK_HOME") == (str(INSTALLED) if named else None)


@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://https://h"])
def test_a_cluster_gets_the_copy_from_the_home(environment: pytest.MonkeyPatch, master: str) -> None:
    with workers_with_this_python(master):
        assert "SPARK_HOME" not in os.environ


def test_another_python_gets_the_copy_which_may_be_all_that_it_has(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("PYSPARK_PYTHON", "/usr/bin/python3")
    with workers_with_this_python("local[2]"):
        assert "SPARK_HOME" not in os.environ
        assert os.environ["PYSPARK_PYTHON"] == "/usr/bin/python3"


def test_a_home_that_was_chosen_is_used(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    chosen = tmp_path / "spark"
    chosen.mkdir()
    environment.setenv("SPARK_HOME", str(chosen))
    with workers_with_this_python("local[2]"):
        assert os.environ["SPARK_HOME"] == str(chosen)


def test_a_home_that_is_not_there_is_named_by_spark_and_leaves_no_folder(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    missing, scratch = tmp_path / "spark", tmp_path / "scratch"
    scratch.mkdir()
    environment.setenv("SPARK_HOME", str(missing))
    environment.setattr(tempfile, "tempdir", str(scratch))
    with (
        pytest.raises(
            SparkStartError, match=rf"^Spark did not start \(.* '{re.escape(str(missing))}/[^;]*\)$"
        ),
        workers_with_this_python("local[2]"),
        jvm_output_to_file(),
    ):
        launch_gateway()
    assert list(scratch.iterdir()) == []
    assert os.environ["SPARK_HOME"] == str(missing)


def test_a_command_says_that_the_home_is_not_there(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {**os.environ, "HOME": str(tmp_path), "SPARK_HOME": str(tmp_path / "spark")}
    done = run("sql", "--lake", "spark_catalog.none", "SELECT 1", env=given)
    assert (done.returncode, done.stdout) == (1, "")
    starting, *failed = done.stderr.splitlines()
    assert starting == "lakebroker: starting Spark ..."
    assert len(failed) == 1, done.stderr
    assert failed[0].startswith("lakebroker: Spark did not start (")
    assert f"'{tmp_path}/spark/" in failed[0]
