"""Trees that DuckDB's parser and planner tell as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every object in a tree, in no order."""
    todo = [tree]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            yield each
            todo += each.values()
        elif isinstance(each, list):
            todo += each
