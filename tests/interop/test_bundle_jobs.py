"""The bundle's jobs as a cluster runs them: the wheel beside a Spark, its entry point called with the very parameters of the files in a
session that is there, brokers over TLS with a token of the environment, tables in a catalog (a Hive metastore), and a file system
without hard links, as volumes have none. `make evidence` runs them on every Spark. The same is shown in short, part by part:

| part | test |
|---|---|
| parameters of the bundle's files | `tests/unit/test_bundle.py` |
| commands in an existing session | `tests/integration/spark/test_provided_session.py`, `test_hosted_driver.py` |
| a token of the environment | `tests/integration/test_secured_logs.py` |
| tables of a catalog | `tests/integration/spark/test_catalog.py` |
| commands over a catalog | `tests/interop/test_catalogs.py` |
| staging without hard links | `tests/integration/spark/test_typed_catalog.py` |
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.gateway import ROOT, Gateway, command
from lakebroker_testing.logs import written
from tests.suite.evidence import LONG
from tests.support.documents.bundle import GIVEN, Bundle, sources
from tests.support.lakes.checks import assert_exact
from tests.support.machines.without_links import library
from tests.support.packages.built_wheel import unpacked
from tests.support.spark.environments import interpreter
from tests.support.spark.hive_metastore import hive_metastore
from tests.support.waiting import LIMIT_S

TOKEN = "0123456789abcdef-secret"
RECORDS = 400
ORDER = ("init", "reput", "maintain")
"""In which the commands of the bundle's tasks run here."""
QUICK = {
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""What a short-lived JVM with little data does without."""
ASK = ["sql", "--lake", "spark_catalog.lake", "--format", "csv", "SELECT count(*) AS found FROM messages"]

pytestmark = pytest.mark.timeout(1800)


@LONG
@pytest.mark.parametrize("version", ["4.0", "4.1", "4.2"])
def test_the_jobs_run_in_a_session_that_is_there(tmp_path: Path, version: str) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    written(tmp_path / "broker-a" / "store", "broker-a", RECORDS)
    with (
        Gateway(tmp_path / "broker-a", brokerName="broker-a", lakeTokenFile=str(token)) as gateway,
        hive_metastore(tmp_path / "hive") as conf,
    ):
        certificate = gateway.store / "config" / "trial-certificate.pem"
        variables = {
            "brokers": gateway.address,
            "lake": "spark_catalog.lake",
            "catalog": "spark_catalog",
            "schema": "lake",
            "tls_ca": str(certificate),
        }
        commands = Bundle.read(sources(), "dev", GIVEN | variables).commands()
        staging = tmp_path / "Volumes"
        assert set(commands) <= set(ORDER)
        tasks = [commands[each] for each in ORDER if each in commands]
        runs = [[each.replace("/Volumes", str(staging), 1) for each in parameters] for parameters, _ in tasks]
        for each in runs:
            if "--staging" in each:
                Path(each[each.index("--staging") + 1]).mkdir(parents=True)
        of_tasks = {
            name: TOKEN if value.startswith("{{secrets/") else value
            for _, environment in tasks
            for name, value in environment.items()
        }
        asked = {
            "settings": {
                "spark.master": "local[2]",
                "spark.ui.enabled": "false",
                "spark.jars.packages": f"io.delta:delta-spark_{version}_2.13:4.4.0",
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                "spark.sql.session.timeZone": "America/New_York",
                **QUICK,
            },
            "runs": [*runs, ASK],
            "threads": [len(runs) - 1],
            "stop_when_read": True,
        }
        environment = {
            "LD_PRELOAD": str(library(tmp_path)),
            "LAKEBROKER_TOKEN": TOKEN,
            "SPARK_CONF_DIR": str(conf),
            "PYTHONPATH": str(unpacked(tmp_path / "wheel")),
        }
        found, said = driven(version, asked, of_tasks | environment)
    assert found["spark"].startswith(f"{version}.")
    assert found["ended"] == [None] * (len(runs) + 1), said
    assert f"found\n{RECORDS}\n" in said
    assert found["changed"] == {}
    assert found["alive"] == [3, 7]
    assert f"reading 1 log from {gateway.address}" in said
    assert "stopped; the lake spark_catalog.lake is at" in said
    assert TOKEN not in said
    assert assert_exact(tmp_path / "hive" / "warehouse" / "lake.db", gateway.store)["messages"] == RECORDS


def driven(version: str, asked: dict[str, Any], variables: dict[str, str]) -> tuple[dict[str, Any], str]:
    """What the driver found, and all that it printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK", "PYSPARK"))}
    done = subprocess.run(
        [
            interpreter(version),
            str(ROOT / "tests" / "support" / "spark" / "hosted_driver.py"),
            json.dumps(asked),
        ],
        cwd="/",
        env=kept | variables | {"PYSPARK_PYTHON": interpreter(version)},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), said


def test_a_folder_without_hard_links_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    store = written(tmp_path / "store", "broker-a", 1)
    done = subprocess.run(
        command("reput", "--store", str(store), "--lake", str(tmp_path / "lake"), "--once"),
        cwd=ROOT,
        env=os.environ | {"LD_PRELOAD": str(library(tmp_path))},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert (
        "this file system has no hard links, which commits need: use another one, or an object store" in line
    )
    assert str(tmp_path / "lake") in line
