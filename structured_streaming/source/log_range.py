"""A range of a log, as batches are planned and staged by. Imports no pyspark: the child that stages a range carefully needs none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LogRange:
    """Bytes [start, end) of a log; they begin and end at records or within damage. Levels and size as in `LogState`.

    `missing`: they are gone, and there is nothing to read. `erased`: where records of it begin that are left out, ascending.
    """

    target: str
    broker: str
    log_id: str
    start: int
    end: int
    log_end: int
    delay_levels: tuple[int, ...] | None = None
    segment_size: int | None = None
    missing: bool = False
    erased: tuple[int, ...] = ()
