"""The notebook runs from its first cell to its last over a small lake."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from lakebroker_testing.gateway import ROOT, command
from lakebroker_testing.logs import LogWriter


def test_tour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter(tmp_path / "store")
    writer.everything()
    writer.close()
    lake = tmp_path / "lake"
    arguments = command("reput", "--store", str(writer.folder), "--lake", str(lake), "--once")
    subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True, timeout=1200)
    monkeypatch.setenv("LAKEBROKER_LAKE", str(lake))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(ROOT / "notebooks" / "tour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=1200, resources={"metadata": {"path": str(ROOT)}}).execute()
    shown = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "because" in shown, "the dead letter's reason is not shown"
    assert "key0" in shown
