"""Times and sizes in options, and what is none."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
import typer

from broker_gateway.cli.units import moment, seconds, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [("500ms", 0.5), ("1s", 1.0), ("1.5s", 1.5), ("2m", 120.0), ("1h", 3600.0), ("7d", 604_800.0), ("0s", 0)],
)
def test_times(text: str, expected: float) -> None:
    assert seconds("--every", text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("1", 1), ("5B", 5), ("512KiB", 1 << 19), ("64MiB", 1 << 26), ("1GiB", 1 << 30)]
)
def test_sizes(text: str, expected: int) -> None:
    assert size("--target", text) == expected


@pytest.mark.parametrize("text", ["", "1", "s", "-1s", "1 s", "1e3s", "١s", "1w", "9999999999s"])
def test_what_is_no_time_is_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        seconds("--every", text)
    assert ended.value.exit_code == 2
    assert f"--every {text}: write it as" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("text", ["", "0", "0MiB", "-1", "1MB", "1.5MiB", "64 MiB", "MiB"])
def test_what_is_no_size_is_named(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        size("--target", text)
    assert ended.value.exit_code == 2
    assert f"--target {text}: write it as" in " ".join(capsys.readouterr().err.split())


def test_a_moment_without_a_zone_is_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        plain, zoned = (moment("--since", text) for text in ("2026-11-25T08:00", "2026-11-25T17:00+09:00"))
    time.tzset()
    assert plain == zoned == datetime(2026, 11, 25, 8, tzinfo=UTC)
    assert moment("--since", "") is None
