"""What Spark's home is for a JVM whose workers run the installed pyspark, and for all others."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

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
