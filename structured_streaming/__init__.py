"""The Spark side: the reput job and SQL over its tables. Start reading at `reput.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structured_streaming.source.data_source import LakebrokerDataSource

__all__ = ["LakebrokerDataSource"]


def __getattr__(name: str) -> object:
    """The data source, with which pyspark is imported: not before it is asked for."""
    if name != "LakebrokerDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from structured_streaming.source.data_source import LakebrokerDataSource

    return LakebrokerDataSource
