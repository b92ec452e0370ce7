"""What a notebook says in place of a trace."""

from __future__ import annotations


class NotebookError(Exception):
    """Names what was wrong and what to do. Jupyter shows the sentence alone, and a run of all cells ends there."""

    def _render_traceback_(self) -> list[str]:
        """IPython's hook for errors that are for people."""
        return [str(self)]
