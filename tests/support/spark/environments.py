"""Virtual environments with a Spark of another version, made at first use and kept under `.cache/`."""

from __future__ import annotations

import os

from lakebroker_testing.cached import filled_once
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.virtual_environment import install, new_environment
from tests.support.packages.extras import requirements
from tests.support.spark.jvm import JVM_OPTIONS


def interpreter(version: str) -> str:
    """A Python that has pyspark `version` (such as 4.0) and what this project needs beside it, as uv chose it."""
    folder = ROOT / ".cache" / f"spark-{version}"
    wanted = [*requirements("spark"), f"pyspark=={version}.*"]
    python = folder / "bin" / "python"
    with filled_once(folder, "\n".join(wanted)) as missing:
        if missing:
            install(new_environment(folder), *wanted)
    return str(python)


def environment() -> dict[str, str]:
    """Variables for such an interpreter: this checkout's packages, its own Spark, the options of short-lived JVMs."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name == JVM_OPTIONS or not name.startswith(("SPARK", "PYSPARK"))
    }
    return kept | {"PYTHONPATH": str(ROOT)}
