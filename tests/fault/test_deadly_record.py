"""A record that ends every process which stages it stops no reput: it goes to quarantine, all others have their rows."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter
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


def test_a_record_that_kills_who_stages_it_goes_to_quarantine(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(KILLER)
    with LogWriter(tmp_path / "store") as writer:
        writer.messages(3)
        deadly = writer.record("topic-0", b"deadly", UNIQ_KEY="DEADLY")
        writer.messages(3)
    lake = tmp_path / "lake"
    done = subprocess.run(
        command("reput", "--store", str(writer.folder), "--lake", str(lake), "--once", "--json"),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a Python worker of Spark died while it staged a batch") == 2
    (batch,) = map(json.loads, done.stdout.splitlines())
    assert (batch["records"], batch["quarantined"]) == (7, 1)
    assert rows(lake, "messages").num_rows == 6
    (bad,) = rows(lake, "quarantine").to_pylist()
    assert bad["physical_offset"] == deadly.physical_offset
    assert bad["reason"] == "the process that staged it ended with signal 9"
