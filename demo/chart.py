"""Throughput and lag over time as a picture, and one HTML page with the answers."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import TYPE_CHECKING

from demo.questions import Answer, Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEGAN = """(SELECT min(store_timestamp) AS began FROM messages_live
  WHERE topic IN ('orders', 'payments', 'shipments'))"""
THROUGHPUT_SQL = f"""SELECT (epoch_ms(store_timestamp) - epoch_ms(began)) // 1000 AS second, topic, count(*) AS messages
FROM messages_live CROSS JOIN {_BEGAN} WHERE topic IN ('orders', 'payments', 'shipments')
GROUP BY ALL ORDER BY second, topic"""
LAG_SQL = f"""SELECT (epoch_ms(moment) - epoch_ms(began)) / 1000 AS seconds, consumer_group, gave_up,
  CAST(sum(change) OVER (PARTITION BY consumer_group ORDER BY moment) AS BIGINT) AS lag
FROM (
  SELECT m.store_timestamp AS moment, g.consumer_group, 1 AS change, false AS gave_up
  FROM messages_live m CROSS JOIN (SELECT DISTINCT consumer_group FROM delivery_events) g
  WHERE m.topic = 'orders'
  UNION ALL
  SELECT event_timestamp, consumer_group, -1, event = 'dead_lettered' FROM delivery_events
  WHERE topic = 'orders' AND event IN ('acked', 'dead_lettered')
) CROSS JOIN {_BEGAN} ORDER BY seconds, lag DESC"""

_COLORS = {"orders": "#3b6ea8", "payments": "#7fb0a0", "shipments": "#d9a441"}
_LAG, _GAVE_UP, _TEXT, _GRID = "#3b6ea8", "#b5382a", "#333333", "#dddddd"


def title(throughput: Rows, lag: Rows) -> str:
    """What is seen, in a sentence."""
    orders = sum(row["messages"] for row in throughput if row["topic"] == "orders")
    parts = []
    for group, rows in _by_group(lag).items():
        gave_up = sum(row["gave_up"] for row in rows)
        most = max(row["lag"] for row in rows)
        more = f" and gives up {gave_up}" if gave_up else ""
        parts.append(f"{group} is {most} behind at most{more}")
    left = max(rows[-1]["lag"] for rows in _by_group(lag).values())
    return f"{orders} orders: {', '.join(parts)}; {f'{left} are left' if left else 'none is left'}"


def draw(throughput: Rows, lag: Rows, path: Path) -> None:
    """Draws throughput by topic, and the lag of each group by itself, into one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = _by_group(lag)
    figure, (upper, *lower) = pyplot.subplots(
        1 + len(groups),
        1,
        figsize=(10, 3.2 + 2 * len(groups)),
        sharex=True,
        height_ratios=[1.4, *[1] * len(groups)],
        layout="constrained",
    )
    figure.suptitle(title(throughput, lag), x=0.01, ha="left", fontsize=12.5, fontweight="bold", color=_TEXT)
    _stored(upper, throughput)
    for axes, (group, rows) in zip(lower, groups.items(), strict=True):
        _lag(axes, group, rows)
        axes.set_ylim(
            0, 1.4 * max(row["lag"] for row in lag)
        )  # the same of all, with room for what is given up
    lower[-1].set_xlabel("seconds since the first message", color=_TEXT)
    end = max([row["seconds"] for row in lag] + [row["second"] + 1 for row in throughput])
    upper.set_xlim(0, end * 1.01)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _stored(axes: Axes, throughput: Rows) -> None:
    """Bars of each second, topics on each other, named at the side."""
    seconds = range(max(row["second"] for row in throughput) + 1)
    below = [0] * len(seconds)
    for topic, color in _COLORS.items():
        counts = {row["second"]: row["messages"] for row in throughput if row["topic"] == topic}
        heights = [counts.get(second, 0) for second in seconds]
        axes.bar(
            seconds,
            heights,
            width=0.94,
            align="edge",
            bottom=below,
            color=color,
            label=f"{topic} ({sum(heights)})",
        )
        below = [one + other for one, other in zip(below, heights, strict=True)]
    _plain(axes, "Messages stored in each second, by topic")
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        frameon=False,
        reverse=True,
        labelcolor=_TEXT,
        handlelength=1,
    )


def _lag(axes: Axes, group: str, rows: Rows) -> None:
    """The group's lag after each event, its peak, and where it gave up an order."""
    times, lags = [row["seconds"] for row in rows], [row["lag"] for row in rows]
    axes.fill_between(times, lags, step="post", color=_LAG, alpha=0.25, linewidth=0)
    axes.step(times, lags, where="post", color=_LAG, linewidth=1.2)
    peak = max(range(len(lags)), key=lags.__getitem__)
    axes.annotate(
        f"{lags[peak]}",
        (times[peak], lags[peak]),
        (0, 3),
        textcoords="offset points",
        ha="left",
        va="bottom",
        color=_TEXT,
    )
    gone = [row["seconds"] for row in rows if row["gave_up"]]
    if gone:
        height = axes.get_xaxis_transform()  # seconds, and a share of the height
        axes.plot(gone, [0.9] * len(gone), "v", color=_GAVE_UP, markersize=7, transform=height)
        axes.annotate(
            "given up: dead letters",
            (gone[-1], 0.9),
            (9, 0),
            xycoords=height,
            textcoords="offset points",
            va="center",
            color=_GAVE_UP,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},
        )
    _plain(axes, f"Orders that {group} has not settled")


def _plain(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=11, color=_TEXT)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(colors=_TEXT, length=0)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.yaxis.get_major_locator().set_params(integer=True, nbins=4)


def _by_group(lag: Rows) -> dict[str, Rows]:
    return {
        group: [row for row in lag if row["consumer_group"] == group]
        for group in sorted({row["consumer_group"] for row in lag})
    }


def page(answers: list[Answer], picture: Path, seen: str, path: Path) -> None:
    """Writes title, SQL, columns and rows of each answer, with the picture, and what is seen on it, in the page itself."""
    encoded = base64.b64encode(picture.read_bytes()).decode()
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>lakebroker demo</title><style>"
        "body{font:15px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#333}"
        "div{overflow:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}"
        "td,th{border-bottom:1px solid #ddd;padding:.25rem .8rem .25rem 0;text-align:left}"
        "pre{background:#f6f6f6;padding:.6rem;overflow:auto}summary{color:#3b6ea8;cursor:pointer}"
        "</style><h1>What the lake says</h1>",
        f'<img alt="{html.escape(seen)}" src="data:image/png;base64,{encoded}" style="max-width:100%">',
    ]
    for answer in answers:
        question = answer.question
        parts.append(f"<h2>{html.escape(question.title)}</h2>")
        parts.append(f"<details><summary>SQL</summary><pre>{html.escape(question.sql)}</pre>")
        parts.append("</details><div><table><tr>")
        parts += [f"<th>{html.escape(column)}</th>" for column in answer.columns]
        for row in answer.rows:
            parts.append("</tr><tr>")
            parts += [f"<td>{html.escape(str(row[column]))}</td>" for column in answer.columns]
        parts.append("</tr></table></div>")
    path.write_text("".join(parts), encoding="utf-8")
