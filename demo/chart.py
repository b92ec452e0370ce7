"""Throughput and lag over time as a picture, and one HTML page with the answers."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]

THROUGHPUT_SQL = """SELECT date_trunc('SECOND', store_timestamp) AS at, topic, count(*) AS messages
FROM messages_live WHERE topic IN ('orders', 'payments', 'shipments') GROUP BY ALL ORDER BY at"""
LAG_SQL = """SELECT at, consumer_group, sent - settled AS lag FROM (
  SELECT at, consumer_group,
         sum(arrived) OVER (PARTITION BY consumer_group ORDER BY at) AS sent,
         sum(gone) OVER (PARTITION BY consumer_group ORDER BY at) AS settled
  FROM (
    SELECT date_trunc('SECOND', m.store_timestamp) AS at, g.consumer_group, count(*) AS arrived, 0 AS gone
    FROM messages_live m CROSS JOIN (SELECT DISTINCT consumer_group FROM delivery_events) g
    WHERE m.topic = 'orders' GROUP BY ALL
    UNION ALL
    SELECT date_trunc('SECOND', event_timestamp), consumer_group, 0, count(*) FROM delivery_events
    WHERE topic = 'orders' AND event IN ('acked', 'dead_lettered') GROUP BY ALL
  )
) ORDER BY at"""


def draw(throughput: Rows, lag: Rows, path: Path) -> None:
    """Draws both charts into one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(9, 6), sharex=True, layout="constrained")
    for topic in sorted({row["topic"] for row in throughput}):
        points = [(row["at"], row["messages"]) for row in throughput if row["topic"] == topic]
        upper.plot(*zip(*points, strict=True), marker=".", label=topic)
    upper.set_ylabel("messages stored per second")
    upper.legend()
    for group in sorted({row["consumer_group"] for row in lag}):
        points = [(row["at"], row["lag"]) for row in lag if row["consumer_group"] == group]
        lower.step(*zip(*points, strict=True), where="post", label=group)
    lower.set_ylabel("orders not settled")
    lower.set_xlabel("time (UTC)")
    lower.legend()
    figure.autofmt_xdate()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def page(answers: list[tuple[str, str, list[str], Rows]], picture: Path, path: Path) -> None:
    """Writes title, SQL, columns and rows of each answer, with the picture in the page itself."""
    encoded = base64.b64encode(picture.read_bytes()).decode()
    parts = [
        "<!doctype html><meta charset=utf-8><title>lakebroker demo</title><style>"
        "body{font:15px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
        "table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.2rem .6rem;text-align:left}"
        "pre{background:#f6f6f6;padding:.6rem;overflow:auto}</style><h1>What the lake says</h1>",
        f'<img alt="throughput and lag" src="data:image/png;base64,{encoded}" style="max-width:100%">',
    ]
    for title, sql, columns, rows in answers:
        parts.append(f"<h2>{html.escape(title)}</h2><pre>{html.escape(sql)}</pre><table><tr>")
        parts += [f"<th>{html.escape(column)}</th>" for column in columns]
        for row in rows:
            parts.append("</tr><tr>")
            parts += [f"<td>{html.escape(str(row[column]))}</td>" for column in columns]
        parts.append("</tr></table>")
    path.write_text("".join(parts))
