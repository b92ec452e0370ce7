"""What a committed batch reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class LogReport(NamedTuple):
    """What a batch has of a broker's log. `lag_bytes` were behind it when it was planned; `newest_ms` is when its newest record
    was stored, 0 where it is not known."""

    broker: str
    bytes: int
    records: int
    lag_bytes: int
    newest_ms: int


@dataclass(slots=True)
class BatchReport:
    """A batch that is in the lake. `quarantined`: rows; `ends` are the logs' new progress by (target, broker, log_id), in bytes;
    `table_seconds`: what the commits took, of those tables that it has rows of."""

    batch: int
    records: int
    bytes: int
    seconds: float
    lag_bytes: int
    quarantined: int = 0
    ends: dict[tuple[str, str, str], int] = field(default_factory=dict)
    logs: tuple[LogReport, ...] = ()
    table_seconds: dict[str, float] = field(default_factory=dict)
