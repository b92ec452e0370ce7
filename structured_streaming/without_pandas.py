"""pyarrow without pandas, in processes that are ours alone: commands, the engine's process, Spark's workers of a reput.

pyarrow imports pandas, where it is installed, at the first array that it makes of a list or of numpy's: a third of a CPU
second, for objects that we never have. It asks Python once whether there is pandas, and takes a no for an answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

WITHOUT_PANDAS = "LAKEBROKER_WITHOUT_PANDAS"
"""In the environment of Spark's workers that run nobody else's code."""


class _NoPandas:
    """Refuses to find it. (None in its place among the modules, Python's own way to say so, is a module to compiled code.)"""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of this process", name=name)
        return None


_no_pandas = _NoPandas()


def leave_pandas_out() -> None:
    """Where pandas was not imported yet, `import pandas` fails from now on, as where it is not installed."""
    if _no_pandas not in sys.meta_path:
        sys.meta_path.insert(0, _no_pandas)


def leave_pandas_out_of_workers() -> None:
    if WITHOUT_PANDAS in os.environ:
        leave_pandas_out()


def let_pandas_in() -> None:
    """For a session of Spark, whose conversions of other people's frames need it."""
    if _no_pandas in sys.meta_path:
        sys.meta_path.remove(_no_pandas)
