"""What the page's library logs of tabs has an end, and says what is left out."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from broker_gateway.cli.console import log_limit
from broker_gateway.cli.console.log_limit import LogLimit


def test_records_beyond_the_limit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(log_limit, "time", SimpleNamespace(monotonic=lambda: now))
    limit, said = LogLimit(2, 60.0), list[str]()

    def log(text: str, logger: str = "nicegui", level: int = logging.WARNING) -> None:
        record = logging.LogRecord(logger, level, "", 0, "%s failed", (text,), None)
        if limit.filter(record):
            said.append(record.getMessage())

    for number in range(5):
        log(f"event {number}")
    log("the server", "uvicorn.error")
    log("this", level=logging.ERROR)
    now += 60.0
    log("another")
    assert said == [
        "event 0 failed",
        "event 1 failed (what else comes within 60 s of the first is left out)",
        "the server failed",
        "this failed",
        "another failed (3 records were left out before this one)",
    ]


def test_a_record_is_short_and_of_characters_that_a_terminal_may_have() -> None:
    record = logging.LogRecord("nicegui", logging.WARNING, "", 0, "%s", ("\x1b[2J" + "x" * 100_000,), None)
    assert LogLimit(2, 60.0).filter(record)
    assert "\x1b" not in record.getMessage()
    assert len(record.getMessage()) < 2_100
