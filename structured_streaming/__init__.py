"""The Spark side: the reput job and SQL over its tables. Start reading at `reput.py`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structured_streaming.source.data_source import LakebrokerDataSource

__all__ = ["LakebrokerDataSource"]

# pyspark forks to start its JVM. gRPC's handlers around a fork, which are for children that use it, end such a child now and
# then while calls are under way. They are set up where grpc is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def __getattr__(name: str) -> object:
    """The data source, with which pyspark is imported: not before it is asked for."""
    if name != "LakebrokerDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from structured_streaming.source.data_source import LakebrokerDataSource

    return LakebrokerDataSource
