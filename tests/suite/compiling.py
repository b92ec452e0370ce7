"""Workers compile the modules of tests together.

pytest rewrites each `assert`, which takes 18 CPU seconds for all modules of a new clone, and keeps the result beside them. Workers that
collect in the same order at the same time would each rewrite all of them. So each begins elsewhere in the list.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import pytest


def import_from_our_share_on(config: pytest.Config) -> None:
    """Imports the modules that a worker is to collect: first its share, then those that others have compiled meanwhile."""
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    modules = _modules([Path(each) for each in config.args], config.rootpath)
    share = len(modules) // worker["workercount"]
    first = share * int(worker["workerid"].removeprefix("gw"))
    for each in modules[first:] + modules[:first]:
        try:
            importlib.import_module(each)
        except Exception:  # pytest imports it again, and says so
            return


def _modules(asked: Sequence[Path], root: Path) -> list[str]:
    """Names of the modules of tests in these folders."""
    files = [file.resolve() for each in asked for file in sorted(each.rglob("test_*.py"))]
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
