"""A record that ends every process which stages it stops no reput: it goes to quarantine, all others have their rows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.gateway import ROOT
from lakebroker_testing.logs import LogWriter
from structured_streaming import reput_query
from structured_streaming.commit.report import BatchReport
from structured_streaming.reput import run_reput
from structured_streaming.reput_options import ReputOptions
from tests.suite.evidence import EVIDENCE
from tests.support.lakes.checks import rows

KILLER = '''
import importlib.util, os, signal, sys
from importlib.abc import MetaPathFinder

class Finder(MetaPathFinder):
    """Makes staging die of bodies that say so."""

    def find_spec(self, name, path, target=None):
        if name != "structured_streaming.rows.bodies":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            made = module._slice

            def killed(records, *others):
                if b"deadly" in records.buffer.tobytes():
                    os.kill(os.getpid(), signal.SIGKILL)
                return made(records, *others)

            module._slice = killed

        spec.loader.exec_module = exec_module
        return spec

if any("pyspark" in each or "careful" in each for each in sys.orig_argv):
    sys.meta_path.insert(0, Finder())
'''


def test_a_record_that_kills_who_stages_it_goes_to_quarantine(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in (
        ("LONGEST_WAIT_S", 0.0),
        ("SIGNAL_S", 0.0),
        ("CAREFUL_AFTER", 2 if EVIDENCE else 1),
    ):
        monkeypatch.setattr(reput_query, name, value)
    (tmp_path / "sitecustomize.py").write_text(KILLER)
    # of the Python processes that Spark starts for what is registered from now on
    monkeypatch.setitem(
        spark.sparkContext.environment, "PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)])
    )
    with LogWriter(tmp_path / "store") as writer:  # how a longer range is cut: the unit tests of staging
        deadly = writer.record("topic-0", b"deadly", UNIQ_KEY="DEADLY")
        writer.messages(1)
    lake, reports = tmp_path / "lake", list[BatchReport]()
    run_reput(ReputOptions(str(lake), store=str(writer.folder), once=True), reports.append)
    told = capsys.readouterr().err
    died = told.count("a Python worker of Spark died while it staged a batch")
    assert died == reput_query.CAREFUL_AFTER or (died and "did not start within 10 s" in told), told
    assert [(batch.records, batch.quarantined) for batch in reports] == [(2, 1)]
    assert rows(lake, "messages").num_rows == 1
    (bad,) = rows(lake, "quarantine").to_pylist()
    assert bad["physical_offset"] == deadly.physical_offset
    assert bad["reason"] == "the process that staged it ended with signal 9"
