"""The demo's questions in the SQL of `lakebroker sql`, and what makes an answer right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from demo.workload import AUDIT_RETRIES, FLAKY, POISON, Counted

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its SQL, and a check that answers what is wrong ("" when nothing is)."""

    title: str
    sql: str
    check: Callable[[Rows, Counted], str]


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question: its columns' names in order, its rows by those names."""

    question: Question
    columns: list[str]
    rows: Rows


def _equal(what: str, actual: object, expected: object) -> str:
    return "" if actual == expected else f"{what}: SQL says {actual}, the client counted {expected}"


QUESTIONS = (
    Question(
        "A message by its key",
        """SELECT m.topic, m.tag, m.keys, decode(m.body) AS body, m.message_id, m.store_timestamp
           FROM message_index i JOIN messages_live m USING (broker, log_id, physical_offset)
           WHERE i.topic = 'orders' AND i.key = 'order-42'""",
        lambda rows, counted: _equal(
            "order-42", [row["message_id"] for row in rows], [counted.ids["order-42"]]
        ),
    ),
    Question(
        "Its life: stored, delivered, nacked, dead letter",
        """SELECT event_timestamp, event, consumer_group, attempt, client FROM message_trace_by_key
           WHERE key = 'order-42' AND topic = 'orders' ORDER BY event_timestamp, step""",
        lambda rows, counted: _equal(
            "events of order-42 in audit",
            [row["event"] for row in rows if row["consumer_group"] == "audit"],
            ["delivered", "nacked"] * (AUDIT_RETRIES + 1) + ["dead_lettered"],
        ),
    ),
    Question(
        "Lag by consumer group",
        """SELECT consumer_group, topic, sum(committed_offset) AS settled, sum(lag) AS lag,
                  count_if(lag IS NULL) AS queues_unknown
           FROM consumer_lag GROUP BY ALL ORDER BY 1, 2""",
        lambda rows, counted: _equal(
            "settled orders",
            {
                row["consumer_group"]: (row["settled"], row["lag"], row["queues_unknown"])
                for row in rows
                if row["topic"] == "orders"
            },
            {"audit": (counted.sent["orders"], 0, 0), "billing": (counted.sent["orders"], 0, 0)},
        ),
    ),
    Question(
        "Dead letters and why",
        """SELECT keys[1] AS key, consumer_group, topic, attempts, reason FROM dead_letters ORDER BY key""",
        lambda rows, counted: _equal(
            "dead letters",
            {(row["key"], row["attempts"]) for row in rows},
            {(key, AUDIT_RETRIES + 1) for key in POISON},
        ),
    ),
    Question(
        "Top topics by minute",
        """SELECT minute, topic, messages, bytes FROM topic_stats
           WHERE left(topic, 1) <> '%' ORDER BY minute, messages DESC""",
        lambda rows, counted: _equal(
            "messages by topic",
            {topic: sum(r["messages"] for r in rows if r["topic"] == topic) for topic in counted.sent},
            counted.sent,
        ),
    ),
    Question(
        "Deliveries after the first",
        """SELECT consumer_group, attempt, count(*) AS deliveries FROM retries GROUP BY ALL ORDER BY 1, 2""",
        lambda rows, counted: _equal(
            "deliveries again",
            {row["consumer_group"]: row["deliveries"] for row in rows},
            {"audit": len(POISON) * AUDIT_RETRIES, "billing": len(FLAKY)},
        ),
    ),
    Question(
        "How far behind is the lake, how fresh",
        """SELECT p.broker, p.batches, p.behind_bytes, f.p50_s, f.p95_s FROM
           (SELECT broker, count(*) AS batches, max_by(log_end_offset - end_offset, end_offset) AS behind_bytes
            FROM reput_progress GROUP BY broker) p JOIN
           (SELECT r.broker,
                   round(quantile_cont(epoch_ms(r.commit_timestamp) - epoch_ms(m.store_timestamp), 0.5) / 1000, 2) AS p50_s,
                   round(quantile_cont(epoch_ms(r.commit_timestamp) - epoch_ms(m.store_timestamp), 0.95) / 1000, 2) AS p95_s
            FROM messages_live m JOIN reput_progress r
              ON m.broker = r.broker AND m.log_id = r.log_id
              AND m.physical_offset >= r.start_offset AND m.physical_offset < r.end_offset
            GROUP BY r.broker) f USING (broker)""",
        lambda rows, counted: _equal("brokers", len(rows), 1),
    ),
)
