"""The bundle's pipeline by open-source Spark Declarative Pipelines: a topic's bodies as rows, each once, however often it runs. Its
queries alone, in short: `tests/integration/spark/test_pipeline.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from lakebroker_testing.gateway import ROOT
from lakebroker_testing.ports import free_ports
from tests.suite.evidence import LONG
from tests.support.lakes.staged import StagedLake
from tests.support.logs.views import BEGIN_MS, MINUTE, ViewLog

START_S = 600.0
BEGIN = datetime.fromtimestamp(BEGIN_MS / 1000, UTC)

pytestmark = [LONG, pytest.mark.timeout(1800)]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    """Of the documentation, with places of this test."""
    (written,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "databricks.md").read_text(), re.DOTALL)
    spec: dict[str, Any] = yaml.safe_load(written)
    spec["storage"] = f"file://{tmp_path}/storage"
    spec["configuration"]["lakebroker.messages"] = "spark_catalog.default.messages"
    (tmp_path / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))
    code = (ROOT / "resources" / "pipelines" / "orders.py").read_text()
    (tmp_path / "orders.py").write_text(code)
    return tmp_path / "spark-pipeline.yml"


def order(number: int) -> bytes:
    return b'{"order_id": "o%d", "customer": "c", "amount": %d.25}' % (number, number)


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(folder)).to_pyarrow_table().to_pylist()
    return found


def test_orders_are_rows_once_and_maintenance_of_the_lake_does_not_stop_it(
    tmp_path: Path, spec: Path
) -> None:
    lake = StagedLake(tmp_path / "lake")
    first, second = ViewLog(), ViewLog()
    for number in range(4):
        first.put("orders", number * 40_000, body=order(number), UNIQ_KEY=f"A{number}")
    first.put("orders", MINUTE, body=b"no order at all", UNIQ_KEY="B")
    first.put("orders", MINUTE, body=b'\xff{"order_id": 1', UNIQ_KEY="E")
    first.put("others", MINUTE, body=order(9), UNIQ_KEY="C")
    second.put("orders", MINUTE, body=order(7), UNIQ_KEY="D")
    lake.take(bytes(first.data))

    warehouse = tmp_path / "warehouse"
    (port,) = free_ports(1)
    serving = [
        sys.executable,
        "-m",
        "tests.support.spark.connect_server",
        str(lake.folder),
        str(warehouse),
        str(port),
    ]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(
            serving, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == "serves\n", (tmp_path / "errors").read_text()[-3000:]

            def run() -> None:
                done = subprocess.run(
                    [sys.executable, "-m", "pyspark.pipelines.cli", "run", "--spec", str(spec)],
                    env=os.environ | {"SPARK_REMOTE": f"sc://127.0.0.1:{port}"},
                    capture_output=True,
                    text=True,
                    timeout=START_S,
                    check=False,
                )
                assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

            run()
            ran_once = sorted(row["message_id"] for row in rows(warehouse / "orders"))
            assert ran_once == ["A0", "A1", "A2", "A3", "B", "E"]
            DeltaTable(str(lake.folder / "messages")).delete("topic = 'others'")  # as retention does
            lake.take(bytes(second.data))
            run()
        finally:
            server.stdin.close()
            try:
                server.wait(START_S)
            finally:
                server.kill()

    found = {row["message_id"]: row["order"] for row in rows(warehouse / "orders")}
    assert len(found) == len(rows(warehouse / "orders")) == 7
    assert found["B"] == {"order_id": None, "customer": None, "amount": None, "unreadable": "no order at all"}
    assert found["E"]["unreadable"].endswith('{"order_id": 1')
    assert found["D"] == {"order_id": "o7", "customer": "c", "amount": Decimal("7.25"), "unreadable": None}
    by_minute = {
        (row["minute"] - BEGIN) // timedelta(minutes=1): (row["orders"], row["unreadable"], row["amount"])
        for row in rows(warehouse / "orders_by_minute")
    }
    assert by_minute == {
        0: (2, 0, Decimal("1.50")),
        1: (4, 2, Decimal("9.50")),
        2: (1, 0, Decimal("3.25")),
    }
