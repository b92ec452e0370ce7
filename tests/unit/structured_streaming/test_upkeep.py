"""What the history of a lake's upkeep adds up to, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from structured_streaming import upkeep
from structured_streaming.retention_rules import parsed
from structured_streaming.upkeep import EXPIRED, EXPIRING, RETENTION, row, upkeep_of

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def history(text: str, days: int, began: datetime = BEGAN) -> Iterator[dict[str, Any]]:
    """A round of retention each day."""
    rules = parsed(text)
    yield from row(RETENTION, rules=rules, at=began).to_pylist()
    for day in range(days):
        at = began + day * DAY
        for kind in (EXPIRING, EXPIRED):
            yield from row(kind, bounds=rules.bounds(at), at=at).to_pylist()


def test_of_the_same_rules_the_latest_bounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def counted(text: str) -> Any:
        asked.append(text)
        return parsed(text)

    monkeypatch.setattr(upkeep, "parsed", counted)
    rows = [*history("orders=3d,*=forever", 300), *history("*=1y", 100, BEGAN + 300 * DAY)]
    found = upkeep_of(reversed(rows))
    assert asked == ["orders=3d,*=forever", "*=1y"], "rules are read once, not for each day"
    first, second = found.promised
    assert first.of("orders") == BEGAN + (299 - 3) * DAY
    assert first.of("others") is None
    assert second.of("orders") == parsed("*=1y").bounds(BEGAN + 399 * DAY).of("orders")
    assert found.expired is not None
    assert found.expired.stated() == second.stated()


def test_what_was_promised_needs_no_further_word() -> None:
    rules = parsed("orders=3d,*=9d")
    found = upkeep_of(history(rules.text, 10))
    assert found.promises(rules.bounds(BEGAN + 9 * DAY))
    assert found.promises(rules.bounds(BEGAN + 2 * DAY))
    assert not found.promises(rules.bounds(BEGAN + 10 * DAY))
    assert not found.promises(parsed("orders=3d").bounds(BEGAN))
