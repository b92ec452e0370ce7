"""The fuzz targets of the scan and of the reput's rows: their corpora again, compiled and not, and a run from there.
`make evidence` runs each for ten minutes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.suite.evidence import EVIDENCE

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
SECONDS = 600 if EVIDENCE else 3
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
LEAST_INPUTS = {"scan": 50, "rows": 20}
LEAST_EDGES = 150
"""Fewer are covered where the walk was not instrumented: then nothing leads the fuzzer."""


def run_target(
    target: str, *arguments: str, compiled: bool, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="lakebroker-fuzz-", dir=IN_MEMORY) as scratch:
        return subprocess.run(
            [sys.executable, "-m", f"tests.fuzz.{target}_target", *arguments],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "NUMBA_DISABLE_JIT": "0" if compiled else "1",
                "TMPDIR": scratch,
            },
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.mark.timeout(600)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("target", LEAST_INPUTS)
def test_the_corpus_holds(target: str, compiled: bool) -> None:
    inputs = sorted((CORPUS / target).iterdir())
    assert len(inputs) > LEAST_INPUTS[target]
    done = run_target(target, "--replay", *map(str, inputs), compiled=compiled)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"replayed {len(inputs)}\n"


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("target", LEAST_INPUTS)
def test_a_run_from_the_corpus_finds_nothing(
    target: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    new = tmp_path / "new"
    new.mkdir()
    done = run_target(
        target,
        f"-max_total_time={SECONDS}",
        "-max_len=4097",
        "-timeout=120",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={tmp_path}/finding-",
        str(new),
        str(CORPUS / target),
        compiled=False,
        folder=tmp_path,
    )
    slow = set(tmp_path.glob("finding-slow-unit-*"))  # only slow: the machine may be busy
    findings = sorted(path.read_bytes() for path in set(tmp_path.glob("finding-*")) - slow)
    last = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)[-1]
    executions = re.search(r"Done (\d+) runs", done.stderr)
    record_property("executions", int(executions[1]) if executions else 0)
    record_property("edges_covered", int(last[0]))
    record_property("features", int(last[1]))
    record_property("new_inputs", len(list(new.iterdir())))
    record_property("findings", len(findings))
    record_property("slow_inputs", len(slow))
    kept = os.environ.get("LAKEBROKER_FUZZ_KEEP")
    if kept:
        shutil.copytree(new, Path(kept, target), dirs_exist_ok=True)
    assert done.returncode == 0, f"{findings}\n{done.stderr[-3000:]}"
    assert executions is not None
    assert int(last[0]) >= LEAST_EDGES
    assert int(executions[1]) > len(list((CORPUS / target).iterdir())) // 2
