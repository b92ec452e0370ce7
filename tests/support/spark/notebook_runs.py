"""Notebooks run headless: in this process, beside a Spark session that is there, or in a kernel of their own. What they drew and
printed comes back."""

from __future__ import annotations

import json
import os
import tempfile
import time
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

from lakebroker_testing.gateway import ROOT

ZONE = "Asia/Tokyo"
"""Of the processes that notebooks run in: times that they show are UTC all the same."""
_INLINE = "module://matplotlib_inline.backend_inline"
_TIMEOUT_S = 900
_DRAWN = "DRAWN"
_TELL = f"""
import json
from tests.support.spark.notebook_runs import drawn
print("{_DRAWN}" + json.dumps(drawn(globals())))
"""


@dataclass
class Ran:
    """What a notebook left: `drawn`, its figures by name; `printed`, by its cells."""

    drawn: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    pictures: int = 0


def drawn(namespace: Mapping[str, Any]) -> dict[str, Any]:
    """What the axes of the figures hold that a notebook named `…_figure`."""
    figures = {name: each for name, each in namespace.items() if name.endswith("_figure")}
    return {
        name: {"title": each.get_suptitle(), "axes": [_axis(axis) for axis in each.axes]}
        for name, each in figures.items()
    }


def _axis(axis: Any) -> dict[str, Any]:
    return {
        "lines": {
            line.get_label(): [[str(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]]
            for line in axis.get_lines()
        },
        "bars": {bars.get_label(): [float(value) for value in bars.datavalues] for bars in axis.containers},
        "y": [text.get_text() for text in axis.get_yticklabels()],
        "points": [
            [str(x) for x in dots.get_offsets()[:, 0]]
            for dots in axis.collections
            if type(dots).__name__ == "PathCollection"
        ],
    }


class Notebooks:
    """Runs notebooks in this process, by the shell that a kernel has. See `notebooks`."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._values: list[object] = []
        shell.display_trap.hook = self._values.append  # or the value of a cell would be printed as text

    def run(self, name: str, environment: Mapping[str, str], **there: Any) -> Ran:
        """One of the repository's, in a namespace that has `there` alone before. Raises what a cell raises."""
        self._shell.reset()
        self._shell.push(there)
        ran = Ran()
        with _environment(environment):
            for source in _sources(name):
                with capture_output() as left:
                    done = self._shell.run_cell(source)
                done.raise_error()
                ran.printed += f"{left.stdout}{left.stderr}\n"
                shown = [output.data for output in left.outputs]
                format_ = self._shell.display_formatter.format
                shown += [format_(value)[0] for value in self._values if value is not None]
                self._values.clear()
                for each in shown:
                    if "image/png" in each:
                        ran.pictures += 1
                    else:
                        ran.printed += f"{each.get('text/html', each.get('text/plain', ''))}\n"
        ran.drawn = drawn(self._shell.user_ns)
        return ran


@contextmanager
def notebooks() -> Iterator[Notebooks]:
    """Plots are made and shown as in a kernel, in `ZONE`."""
    import matplotlib  # takes long, as the client of kernels does: not for who only collects tests
    from matplotlib_inline.backend_inline import configure_inline_support

    config = Config()
    config.HistoryManager.enabled = False
    backend = matplotlib.get_backend()
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"TZ": ZONE}):
        time.tzset()
        matplotlib.use(_INLINE)
        matplotlib.interactive(True)
        shell = InteractiveShell.instance(
            config=config, ipython_dir=folder, user_module=types.ModuleType("notebook")
        )
        configure_inline_support(shell, _INLINE)
        try:
            yield Notebooks(shell)
        finally:
            InteractiveShell.clear_instance()
            matplotlib.interactive(False)
            matplotlib.use(backend)
    time.tzset()


def run_in_kernel(name: str, environment: Mapping[str, str], after: str, folder: Path) -> tuple[Ran, str]:
    """Runs a notebook in a kernel of its own, which begins in `folder`, and a cell behind it; returns what both left. Raises nbclient's
    CellExecutionError."""
    from nbclient import NotebookClient

    cells = [nbformat.v4.new_code_cell(source) for source in (*_sources(name), _TELL, after)]
    whole = nbformat.v4.new_notebook(cells=cells)
    with _environment(environment):
        given = os.environ | {"PYTHONPATH": str(ROOT), "TZ": ZONE}
    client = NotebookClient(whole, timeout=_TIMEOUT_S, resources={"metadata": {"path": str(folder)}})
    client.execute(env=given)
    *printed, told, last = (
        "".join(output.get("text", "") for output in cell.outputs) for cell in whole.cells
    )
    pictures = sum("image/png" in output.get("data", {}) for cell in whole.cells for output in cell.outputs)
    return Ran(json.loads(told.removeprefix(_DRAWN)), "\n".join(printed), pictures), last


def _sources(name: str) -> list[str]:
    read = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    return [cell.source for cell in read.cells if cell.cell_type == "code"]


@contextmanager
def _environment(parameters: Mapping[str, str]) -> Iterator[None]:
    """These parameters of notebooks, and no others."""
    with patch.dict(os.environ):
        for each in [each for each in os.environ if each.startswith("LAKEBROKER_")]:
            del os.environ[each]
        os.environ.update({f"LAKEBROKER_{key.upper()}": value for key, value in parameters.items()})
        yield
