"""The notebooks' plots. Each returns its figure, whose axes have the values that are seen; Jupyter and Databricks show it.

Lines do not lie over each other: each series has a panel of its own. Names come from messages, so they are shown as text,
whatever is in them.
"""

from __future__ import annotations

import datetime
import textwrap
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Form = Callable[[float], str]
MOST = 8
"""Series of a figure."""
_FEW = 60
"""Points of a line that are seen each."""
_MINUTE = datetime.timedelta(minutes=1)
_INK, _QUIET, _GRID = "#22313f", "#7b8794", "#e4e8ec"
_COLOURS = ("#2f6f9f", "#d98032", "#4c956c", "#8c5a9e", "#b8a038", "#c65b7c", "#5b8def", "#8a8f98")
_OF_EVENTS = {
    "stored": "#22313f",
    "delivered": "#2f6f9f",
    "acked": "#4c956c",
    "nacked": "#d98032",
    "expired": "#d98032",
    "dead_lettered": "#b23a48",
}
_WIDTH = 10.0
"""Inches."""
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _GRID,
    "axes.labelcolor": _QUIET,
    "xtick.color": _QUIET,
    "ytick.color": _QUIET,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def shown(text: object, width: int = 40) -> str:
    """A name as a plot shows it: on one line, cut to `width`, and no formula where it has dollars."""
    line = "".join(each if each.isprintable() else "\ufffd" for each in str(text))
    cut = line if len(line) <= width else f"{line[: width - 1]}…"
    return cut.replace("$", r"\$")


def over_time(
    rows: pd.DataFrame,
    at: str,
    by: str,
    value: str,
    *,
    minutes: int | None,
    held: bool = False,
    until: Any = None,
) -> pd.DataFrame:
    """A column for each series, a row for each time. In steps of `minutes` up to `until`, with 0 where there is no row, or what was
    before where values are `held`; without `minutes`, the times of the rows."""
    import pandas as pd

    if rows.empty:
        return pd.DataFrame()
    wide = rows.pivot_table(index=at, columns=by, values=value, aggfunc="last" if held else "sum").astype(
        float
    )
    if minutes is not None:
        end = max(wide.index.max(), until) if until is not None else wide.index.max()
        times = pd.date_range(wide.index.min(), end, freq=f"{minutes}min")
        wide = wide.reindex(wide.index.union(times)) if held else wide.reindex(times)
    return wide.ffill() if held else wide.fillna(0.0)


def greatest(wide: pd.DataFrame, *, summed: bool, most: int = MOST) -> pd.DataFrame:
    """The `most` series with the greatest sum, or peak, greatest first; the sum of the others beside, where values add up."""
    order = (wide.sum() if summed else wide.max()).sort_values(ascending=False, kind="stable").index
    if len(order) <= most:
        return wide[order]
    if not summed:
        return wide[order[:most]]
    kept = wide[order[: most - 1]].copy()
    kept[f"{len(order) - most + 1} others"] = wide[order[most - 1 :]].sum(axis=1)
    return kept


def panels(
    wide: pd.DataFrame, title: str, unit: str, *, alike: bool = False, form: Form | None = None
) -> Figure:
    """Series over time, below each other, with one time axis; `alike`: with one scale. `unit` is what is counted, `form` how a
    value is written."""
    form = form or number
    names = list(wide.columns)
    figure, axes = _figure(len(names), 0.55 + 0.85 * len(names), share=alike)
    times = wide.index.tz_convert("UTC").tz_localize(None) if wide.index.tz is not None else wide.index
    for place, (name, axis) in enumerate(zip(names, axes, strict=True)):
        colour = _COLOURS[place % len(_COLOURS)]
        values = wide[name].to_numpy(dtype=float)
        dots = "." if len(times) <= _FEW else ""
        axis.step(times, values, where="post", color=colour, linewidth=1.4, marker=dots, label=str(name))
        axis.fill_between(times, values, step="post", color=colour, alpha=0.15, linewidth=0)
        top = float(wide.max().max() if alike else wide[name].max())
        axis.set_ylim(0, top * 1.12 if top > 0 else 1)
        axis.set_yticks([0, top] if top > 0 else [0], ["0", form(top)] if top > 0 else ["0"])
        axis.set_title(shown(name), loc="left", fontsize=10, pad=3)
        if len(times) == 1:
            axis.set_xlim(times[0] - _MINUTE, times[0] + _MINUTE)
        else:
            axis.margins(x=0.01)
        _times(axis)
    axes[-1].set_xlabel("time (UTC)")
    axes[0].set_title(unit, loc="right", fontsize=9, color=_QUIET, pad=3)
    return _titled(figure, title)


def days(wide: pd.DataFrame, title: str, unit: str, *, form: Form | None = None) -> Figure:
    """Series by day, one upon the other; names beside."""
    figure, (axis,) = _figure(1, 3.6)
    times = wide.index.tz_convert("UTC").tz_localize(None) if wide.index.tz is not None else wide.index
    below = 0.0
    for place, name in enumerate(wide.columns):
        values = wide[name].to_numpy(dtype=float)
        axis.bar(
            times, values, bottom=below, width=0.8, color=_COLOURS[place % len(_COLOURS)], label=shown(name)
        )
        below = below + values
    axis.set_ylabel(unit)
    axis.yaxis.set_major_formatter(_formatter(form or number))
    axis.set_xlabel("day (UTC)")
    _times(axis, days=True)
    _quiet_grid(axis, "y")
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    return _titled(figure, title)


def bars(names: list[Any], values: list[Any], title: str, unit: str, *, form: Form | None = None) -> Figure:
    """A bar for each name, in the order given, each with its value."""
    form = form or number
    figure, (axis,) = _figure(1, 1.1 + 0.36 * len(names))
    drawn = axis.barh(range(len(names)), [float(each) for each in values], color=_COLOURS[0], height=0.62)
    axis.bar_label(drawn, labels=[form(float(each)) for each in values], padding=4, color=_INK)
    axis.set_yticks(range(len(names)), [shown(each, 52) for each in names])
    axis.tick_params(axis="y", length=0, labelcolor=_INK)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xlim(left=0)
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
    axis.set_xlabel(unit)
    return _titled(figure, title)


def timeline(steps: pd.DataFrame, title: str) -> Figure:
    """What happened to a message: a line for each of `steps` (`event_timestamp`, `event`, `consumer_group`, `attempt`, `topic`), in
    their order, with the time since the first one. Steps of a group are joined."""
    import pandas as pd

    figure, (axis,) = _figure(1, 1.2 + 0.34 * len(steps))
    times = [each.tz_convert("UTC").tz_localize(None) for each in steps["event_timestamp"]]
    lanes: dict[str, tuple[Any, int]] = {}
    labels = []
    for row, (at, event, group, attempt, topic) in enumerate(
        zip(times, steps["event"], steps["consumer_group"], steps["attempt"], steps["topic"], strict=True)
    ):
        lane = "" if pd.isna(group) else str(group)
        if lane and lane in lanes:
            before, line = lanes[lane]
            axis.plot([before, at], [line, row], color=_GRID, linewidth=1.5, zorder=1)
        lanes[lane] = (at, row)
        axis.scatter([at], [row], s=46, color=_OF_EVENTS.get(event, _QUIET), zorder=2)
        after = "" if pd.isna(attempt) else f", attempt {attempt}"
        labels.append(f"{event}{after}  ·  {shown(lane or topic, 34)}")
    axis.set_yticks(range(len(steps)), labels)
    axis.tick_params(axis="y", length=0, labelcolor=_INK)
    axis.set_ylim(len(steps) - 0.4, -0.6)
    right = axis.secondary_yaxis("right")
    right.set_yticks(range(len(steps)), [since(at - times[0]) for at in times])
    right.tick_params(axis="y", length=0, labelcolor=_QUIET)
    right.spines["right"].set_visible(False)
    axis.margins(x=0.04)
    _times(axis)
    _quiet_grid(axis, "x")
    axis.set_xlabel("time (UTC); at the right, time since it was stored first")
    return _titled(figure, title)


def since(span: Any) -> str:
    """A time span for people, such as +1.25 s."""
    seconds = span.total_seconds()
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:+.1f} {unit}"
    return f"{seconds:+.3f} s"


def number(value: float) -> str:
    """A count for people."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2g}"


def money(value: float) -> str:
    """An amount, to the hundredth."""
    return f"{value:,.2f}" if value >= 0.005 or value <= 0 else "< 0.01"


def size(count: float) -> str:
    """Bytes for people, by powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 1000 or unit == "TB":
            return f"{count:.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def said(*sentences: str) -> None:
    """What a plot tells, below it."""
    print(textwrap.fill(" ".join(each for each in sentences if each), 110))


def _figure(count: int, height: float, *, share: bool = False) -> tuple[Figure, list[Axes]]:
    from matplotlib import pyplot, rc_context

    # outside of the context, which would undo what Jupyter's backend sets when the first figure is made
    figure = pyplot.figure(figsize=(_WIDTH, height), dpi=100, layout="constrained")
    with rc_context(_STYLE):
        axes = figure.subplots(count, 1, sharex=True, sharey=share, squeeze=False)
    return figure, [row[0] for row in axes]


def _titled(figure: Figure, title: str) -> Figure:
    warnings.filterwarnings("ignore", "Glyph .* missing from")  # a name in letters that the font lacks
    figure.suptitle(
        "\n".join(textwrap.wrap(title, 95)), x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK
    )
    return figure


def _times(axis: Axes, *, days: bool = False) -> None:
    from matplotlib import dates as untyped

    dates: Any = untyped
    locator = dates.AutoDateLocator(minticks=2 if days else 3, maxticks=8)
    if days:
        locator.intervald[dates.HOURLY] = [24]
    axis.xaxis.set_major_locator(locator)
    axis.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _quiet_grid(axis: Axes, which: Any) -> None:
    axis.set_axisbelow(True)
    axis.grid(axis=which, color=_GRID, linewidth=0.8)


def _formatter(form: Form) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: form(value))
