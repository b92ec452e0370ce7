"""The fuzz targets of the scan and of the reput's rows: their corpora again, and a run from there. `make evidence` takes all of the corpora,
compiled and not, and runs each target for ten minutes."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fuzz import rows_target, scan_target
from tests.suite.evidence import EVIDENCE, LONG
from tests.suite.scratch import memory_folder

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "fuzz" / "corpus"
NEW_RUNS = 20
SECONDS = 600
IN_MEMORY = memory_folder()
LEAST_INPUTS = {"scan": 50, "rows": 20}
SHARE = {"scan": 1, "rows": 1 if EVIDENCE else 10}
"""One of so many inputs is taken: the rows of each are committed to a lake."""
LEAST_EDGES = 150
"""Fewer are covered where the walk was not instrumented: then nothing leads the fuzzer."""


def inputs_of(target: str) -> list[Path]:
    found = sorted((CORPUS / target).iterdir())[:: SHARE[target]]
    assert len(found) > LEAST_INPUTS[target]
    return found


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


@pytest.fixture
def _scratch_in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="lakebroker-fuzz-", dir=IN_MEMORY) as scratch:
        monkeypatch.setattr(tempfile, "tempdir", scratch)
        yield
        rows_target.LAKES.close()


@pytest.mark.usefixtures("_scratch_in_memory")
@pytest.mark.parametrize(("target", "check"), [("scan", scan_target.check), ("rows", rows_target.check)])
def test_the_corpus_holds(target: str, check: Callable[[bytes], None]) -> None:
    for path in inputs_of(target):
        try:
            check(path.read_bytes())
        except AssertionError as error:
            raise AssertionError(f"{path}: {error}") from error


@LONG
@pytest.mark.parametrize("target", LEAST_INPUTS)
def test_the_corpus_holds_where_nothing_is_compiled(target: str) -> None:
    inputs = inputs_of(target)
    done = run_target(target, "--replay", *map(str, inputs), compiled=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == f"replayed {len(inputs)}\n"


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.parametrize("target", LEAST_INPUTS)
def test_a_run_from_the_corpus_finds_nothing(
    target: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Short, it makes a few inputs from one of twenty."""
    new, begin = tmp_path / "new", tmp_path / "begin"
    new.mkdir()
    begin.mkdir()
    inputs = inputs_of(target)[:: 1 if EVIDENCE else 20 // SHARE[target]]
    for each in inputs:
        shutil.copy(each, begin)
    seed = random.randrange(1, 1 << 32)
    done = run_target(
        target,
        f"-max_total_time={SECONDS}" if EVIDENCE else f"-runs={len(inputs) + NEW_RUNS}",
        f"-seed={seed}",
        "-max_len=4097",
        "-timeout=120",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={tmp_path}/finding-",
        str(new),
        str(begin),
        compiled=False,
        folder=tmp_path,
    )
    slow = set(tmp_path.glob("finding-slow-unit-*"))  # only slow: the machine may be busy
    findings = sorted(path.read_bytes() for path in set(tmp_path.glob("finding-*")) - slow)
    last = re.findall(r"cov: (\d+) ft: (\d+) corp: (\d+)", done.stderr)[-1]
    executions = re.search(r"Done (\d+) runs", done.stderr)
    record_property("seed", seed)
    record_property("executions", int(executions[1]) if executions else 0)
    record_property("edges_covered", int(last[0]))
    record_property("features", int(last[1]))
    record_property("new_inputs", len(list(new.iterdir())))
    record_property("findings", len(findings))
    record_property("slow_inputs", len(slow))
    kept = os.environ.get("LAKEBROKER_FUZZ_KEEP")
    if kept:
        shutil.copytree(new, Path(kept, target), dirs_exist_ok=True)
    assert done.returncode == 0, f"seed {seed}: {findings}\n{done.stderr[-3000:]}"
    assert executions is not None
    assert int(last[0]) >= LEAST_EDGES
    assert int(executions[1]) > len(inputs) // 2
