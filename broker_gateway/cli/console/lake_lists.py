"""Topics and groups of a lake alone, with their lag and what they have: what brokers tell where there are some."""

from __future__ import annotations

from collections import Counter

from broker_gateway.cli.console.facts import Group, Names, Topic, TopicStatus
from broker_gateway.cli.console.lake_engine import LakeEngine
from broker_gateway.cli.questions.rows import Row
from broker_gateway.metadata.names import DLQ_PREFIX, RETRY_PREFIX

MOST_NAMES = 200_000
"""Topics or groups of a lake that are listed."""
_NEWEST = "change_timestamp DESC, physical_offset DESC, ordinal DESC"


def names(lake: LakeEngine) -> Names:
    """Topics and groups. Raises AskError."""
    from structured_streaming.system_topics import is_of_brokers

    topics, groups = _configured(lake), _configured_groups(lake)
    read = {row["broker"] for row in lake.rows("SELECT DISTINCT broker FROM reput_progress")}
    others, given = _among("broker", sorted(read - {row["broker"] for row in topics}))
    if given:
        topics += lake.rows(
            "SELECT broker, topic, count(DISTINCT queue_id) AS queues FROM consume_queue "
            f"WHERE {others} GROUP BY broker, topic LIMIT {MOST_NAMES:d}",
            given,
        )
        groups |= {
            row["name"]
            for row in lake.rows(
                f"SELECT DISTINCT consumer_group AS name FROM consumer_offsets WHERE {others} LIMIT {MOST_NAMES:d}",
                given,
            )
        }
    queues = Counter[str]()
    for row in topics:
        queues[row["topic"]] += row["queues"]
    return Names(
        tuple(
            Topic(topic, queues[topic], "")
            for topic in sorted(queues)
            if not topic.startswith((DLQ_PREFIX, RETRY_PREFIX)) and not is_of_brokers(topic)
        ),
        tuple(Group(name, None, None) for name in sorted(groups)),
        tuple(sorted(topic.removeprefix(DLQ_PREFIX) for topic in queues if topic.startswith(DLQ_PREFIX))),
    )


def lag(lake: LakeEngine, groups: set[str]) -> list[Row]:
    """What groups have before them, of each topic: rows of `TOTALS`. Raises AskError."""
    among, given = _among("consumer_group", sorted(groups))
    return lake.rows(
        "SELECT consumer_group, topic, count(*) AS queues, sum(lag)::BIGINT AS lag, count_if(lag IS NULL) AS unknown, "
        f"max(commit_timestamp) AS commit_timestamp FROM consumer_lag WHERE {among} "
        "GROUP BY consumer_group, topic ORDER BY consumer_group, topic",
        given,
    )


def topic_status(lake: LakeEngine, topics: list[str]) -> dict[str, TopicStatus]:
    """What there is of topics. Raises AskError."""
    among, given = _among("topic", topics)
    rows = lake.rows(
        "SELECT topic, count(*) AS messages, epoch_ms(max(store_timestamp)) AS newest FROM consume_queue "
        f"WHERE {among} GROUP BY topic",
        given,
    )
    return {row["topic"]: TopicStatus(row["messages"], row["newest"]) for row in rows}


def _configured(lake: LakeEngine) -> list[Row]:
    """Topics of brokers that write down their topics: with `broker`, and how many queues they have. Those that are deleted have
    none; their messages may be there."""
    return lake.rows(
        "SELECT broker, topic, CASE WHEN deleted THEN 0 ELSE coalesce(greatest(configuration.read_queues, "
        "configuration.write_queues), 0) END AS queues FROM topics QUALIFY row_number() OVER ("
        f"PARTITION BY broker, topic ORDER BY {_NEWEST}) = 1 LIMIT {MOST_NAMES:d}"
    )


def _configured_groups(lake: LakeEngine) -> set[str]:
    rows = lake.rows(
        "SELECT consumer_group AS name FROM (SELECT consumer_group, deleted FROM consumer_groups QUALIFY row_number() OVER ("
        f"PARTITION BY broker, consumer_group ORDER BY {_NEWEST}) = 1) WHERE NOT deleted LIMIT {MOST_NAMES:d}"
    )
    return {row["name"] for row in rows}


def _among(column: str, values: list[str]) -> tuple[str, dict[str, str]]:
    """A condition by which files are passed over, and its parameters."""
    given = {f"v{number}": value for number, value in enumerate(values)}
    return (f"{column} IN ({', '.join(f'${name}' for name in given)})" if given else "false"), given
