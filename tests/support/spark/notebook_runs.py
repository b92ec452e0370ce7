"""Notebooks run headless, one after the other in one kernel; what they drew and printed comes back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from lakebroker_testing.gateway import ROOT

TIMEOUT_S = 280
_DRAWN = """
import json as _json
_found = {}
for _name, _each in list(globals().items()):
    if not _name.endswith("_figure"):
        continue
    _axes = []
    for _axis in _each.axes:
        _axes.append({
            "title": _axis.get_title(loc="left"),
            "lines": {_line.get_label(): [[str(_x) for _x in _line.get_xdata()], [float(_y) for _y in _line.get_ydata()]]
                      for _line in _axis.get_lines()},
            "bars": {_bars.get_label(): [float(_value) for _value in _bars.datavalues] for _bars in _axis.containers},
            "x": [_text.get_text() for _text in _axis.get_xticklabels()],
            "y": [_text.get_text() for _text in _axis.get_yticklabels()],
            "points": [[str(_x) for _x in _dots.get_offsets()[:, 0]] for _dots in _axis.collections
                       if type(_dots).__name__ == "PathCollection"],
        })
    _found[_name] = {"title": _each.get_suptitle(), "axes": _axes}
print("DRAWN" + _json.dumps(_found))
for _name in [_name for _name in globals() if not _name.startswith("_") and _name not in KEPT]:
    del globals()[_name]
"""
"""Tells what the axes of the figures that a notebook named hold, and leaves its names to no other."""


@dataclass
class Ran:
    """What a notebook left: `drawn`, its figures by name; `printed`, by its cells."""

    drawn: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    pictures: list[str] = field(default_factory=list)
    """PNG in base64."""


def run(
    notebooks: Sequence[tuple[str, Mapping[str, str]]],
    *,
    before: str = "",
    after: str = "",
    folder: Path = ROOT,
) -> tuple[list[Ran], str]:
    """Runs each of `notebooks`, with its environment, between two cells of the test's; returns what they left, and what the last
    cell printed. Raises nbclient's CellExecutionError."""
    cells = [
        _cell(f"{before}\nKEPT = {{'KEPT', 'In', 'Out', 'exit', 'quit', 'get_ipython', 'open', *globals()}}")
    ]
    begins = []
    for name, environment in notebooks:
        wanted = {f"LAKEBROKER_{key.upper()}": value for key, value in environment.items()}
        cells.append(
            _cell(
                "import os as _os\nfor _each in [_each for _each in _os.environ if _each.startswith('LAKEBROKER_')]:\n"
                f"    del _os.environ[_each]\n_os.environ.update({wanted!r})"
            )
        )
        begins.append(len(cells))
        read = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
        cells += [_cell(cell.source) for cell in read.cells if cell.cell_type == "code"]
        cells.append(_cell(_DRAWN))
    cells.append(_cell(after))
    whole = nbformat.v4.new_notebook(cells=cells)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TZ": "Asia/Tokyo"}
    NotebookClient(whole, timeout=TIMEOUT_S, resources={"metadata": {"path": str(folder)}}).execute(
        env=environment
    )
    found = [_left(whole.cells[begin:end]) for begin, end in zip(begins, [*begins[1:], None], strict=True)]
    return found, _printed(whole.cells[-1])


def _cell(source: str) -> Any:
    return nbformat.v4.new_code_cell(source)


def _left(cells: Sequence[Any]) -> Ran:
    ran = Ran()
    for cell in cells:
        text = _printed(cell)
        if text.startswith("DRAWN"):
            ran.drawn = json.loads(text[len("DRAWN") :])
            break
        ran.printed += f"{text}\n"
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                ran.pictures.append(data["image/png"])
            else:
                ran.printed += f"{data.get('text/html', data.get('text/plain', ''))}\n"
    return ran


def _printed(cell: Any) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)
