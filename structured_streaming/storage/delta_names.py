"""Names in a Delta table's log: of its files, as Delta's protocol has them, and of Spark's writer. Imports nothing that a gateway
has not."""

from __future__ import annotations

import re

LOG = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
SPARK_APPLICATION = "lakebroker-spark"
"""Application transaction of tables that Spark's writer commits to: its version is the lake's counter, and what the lake
holds of each log stands in the rows of `reput_progress` alone."""
BATCH_APPLICATION = "lakebroker-batch"
"""Application transaction of `reput_progress` whose version is the lake's batch counter."""
_DIGITS = 20
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint.*\.parquet")


def commit_name(version: int) -> str:
    return f"{version:0{_DIGITS}}.json"


def checkpoint_name(version: int) -> str:
    """Of a checkpoint in one file."""
    return f"{version:0{_DIGITS}}.checkpoint.parquet"


def is_checkpoint(name: str) -> bool:
    """Whether it is a checkpoint, or a part of one."""
    return _CHECKPOINT.fullmatch(name) is not None


def version_of(name: str) -> int | None:
    """The version that a commit's or a checkpoint's name begins with; None for other names."""
    digits = name[:_DIGITS]
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) == _DIGITS else None
