"""What plots show of rows: gaps, many series, names of any kind."""

from __future__ import annotations

import pandas as pd
import pytest

from structured_streaming.notebooks import charts
from structured_streaming.notebooks.session import filled

BEGIN = pd.Timestamp("2026-01-01", tz="UTC")


def rows(*given: tuple[int, str, float]) -> pd.DataFrame:
    """Minute, name and value of each."""
    return pd.DataFrame(
        [(BEGIN + pd.Timedelta(minutes=at), name, value) for at, name, value in given],
        columns=["at", "name", "value"],
    )


def over(given: pd.DataFrame, **options: bool) -> dict[str, list[float]]:
    until = BEGIN + pd.Timedelta(minutes=4)
    wide = charts.over_time(given, "at", "name", "value", minutes=1, until=until, **options)
    return {name: list(wide[name]) for name in wide.columns}


def test_minutes_without_a_row_count_nothing_and_what_is_held_stays() -> None:
    given = rows((0, "a", 3), (2, "a", 5), (1, "b", 7))
    assert over(given) == {"a": [3, 0, 5, 0, 0], "b": [0, 7, 0, 0, 0]}
    held = over(given, held=True)
    assert held["a"] == [3, 3, 5, 5, 5]
    assert held["b"] == [pytest.approx(float("nan"), nan_ok=True), 7, 7, 7, 7]


def test_without_rows_there_is_nothing_to_show() -> None:
    nothing = charts.over_time(rows(), "at", "name", "value", minutes=1)
    assert nothing.empty
    assert charts.greatest(nothing, summed=True).empty


def test_of_many_series_the_greatest_are_shown_and_the_others_summed_where_they_add_up() -> None:
    wide = charts.over_time(
        rows(*((0, f"t{number:02}", number) for number in range(1, 13))), "at", "name", "value", minutes=1
    )
    summed = charts.greatest(wide, summed=True)
    assert list(summed.columns) == ["t12", "t11", "t10", "t09", "t08", "t07", "t06", "5 others"]
    assert summed["5 others"].iloc[0] == 1 + 2 + 3 + 4 + 5
    assert list(charts.greatest(wide, summed=False).columns) == [f"t{n:02}" for n in range(12, 4, -1)]


def test_names_are_shown_as_text() -> None:
    assert charts.shown("price_$usd$") == "price_\\$usd\\$"
    assert charts.shown("a\nb\x07") == "a\ufffdb\ufffd"
    assert charts.shown("x" * 50, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("name", ["$\\frac$", "\\$", "$$", "{}", "^_", "日本", "\u202e"])
def test_any_name_can_be_drawn(name: str) -> None:
    wide = charts.over_time(rows((0, name, 1), (1, name, 2)), "at", "name", "value", minutes=1)
    for figure in (
        charts.panels(wide, charts.shown(name), "units"),
        charts.days(wide, charts.shown(name), "units"),
        charts.bars([name], [1.5], charts.shown(name), "units"),
    ):
        figure.canvas.draw()
        _close(figure)


def test_one_point_is_seen_at_its_minute() -> None:
    figure = charts.panels(
        charts.over_time(rows((0, "a", 0)), "at", "name", "value", minutes=1), "one", "units"
    )
    least, most = figure.axes[0].get_xlim()
    assert most - least == pytest.approx(2 / 24 / 60)
    _close(figure)


def _close(figure: object) -> None:
    from matplotlib import pyplot

    pyplot.close(figure)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (7e12, "7.0 TB"), (7e15, "7,000.0 TB")],
)
def test_sizes_are_written_for_people(value: float, said: str) -> None:
    assert charts.size(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "+0.000 s"), (1.25, "+1.250 s"), (90, "+1.5 min"), (7200, "+2.0 h"), (172800, "+2.0 d")],
)
def test_spans_are_written_for_people(seconds: float, said: str) -> None:
    assert charts.since(pd.Timedelta(seconds=seconds)) == said


def test_values_stand_in_a_statement_as_literals() -> None:
    at = pd.Timestamp("2026-01-01 09:00", tz="Asia/Tokyo").to_pydatetime()
    assert filled("a = :key AND b = :key2 AND :none", {"key": "it's \\", "key2": 3, "none": None}) == (
        "a = 'it\\'s \\\\' AND b = 3 AND NULL"
    )
    assert filled("x >= :at", {"at": at}) == "x >= TIMESTAMP '2026-01-01 00:00:00.000000Z'"
    assert filled("array_contains(:ids, x)", {"ids": ["a", ":key"], "key": "b"}) == (
        "array_contains(array('a', ':key'), x)"
    )
    assert filled("CAST(a AS STRING)::key, ':other'", {"key": "b"}) == "CAST(a AS STRING)::key, ':other'"
