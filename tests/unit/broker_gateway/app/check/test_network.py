"""What other machines say, for each of the brokers on a host."""

from __future__ import annotations

from pathlib import Path

from broker_gateway.app.check.finding import Finding, Verdict
from broker_gateway.app.check.network import check_lake
from tests.support.lakes.staged import StagedLake
from tests.support.logs.views import other_log


def test_the_lake_is_looked_through_for_each_broker_of_the_host(tmp_path: Path) -> None:
    staged = StagedLake(tmp_path / "lake")
    for name in ("b-0", "b-1"):
        staged.take(other_log(), broker=name)

    def found(*names: str) -> Finding:
        finding = check_lake(str(staged.folder), names, store_is_new=False)
        assert finding is not None
        return finding

    assert found("b-0", "b-1").verdict is Verdict.OK
    lacking = found("b-0", "b-2")
    assert lacking.verdict is Verdict.WARN
    assert lacking.value.endswith("has b-0, b-1, and not b-2")
