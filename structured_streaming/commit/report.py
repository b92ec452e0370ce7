"""What a committed batch reports."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class BatchReport:
    """A batch that is in the lake. `quarantined`: rows; `ends` are the logs' new progress by (target, broker, log_id), in bytes."""

    batch: int
    records: int
    bytes: int
    seconds: float
    lag_bytes: int
    quarantined: int = 0
    ends: dict[tuple[str, str, str], int] = field(default_factory=dict)
