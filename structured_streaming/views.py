"""Every view over the lake's tables, in Spark SQL."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class View:
    """A view over the tables, in Spark SQL; views may use those before them."""

    name: str
    comment: str
    sql: str


VIEWS = (
    View(
        "messages_live",
        "Messages of users; with what the logs hold beyond the lake, in a session that reads them.",
        "SELECT * FROM messages WHERE NOT is_system",
    ),
    View(
        "consumer_lag",
        "Messages not yet settled, by consumer group and each queue of the topics it reads; NULL where that is not known.",
        """
        WITH logs AS (
          SELECT broker, log_id, max(batch) AS batch FROM reput_progress GROUP BY ALL
        ), ends AS (
          SELECT q.broker, q.topic, q.queue_id,
                 max_by(q.queue_offset + 1, struct(coalesce(l.batch, 9223372036854775807), q.queue_offset))
                   AS max_offset
          FROM consume_queue q LEFT JOIN logs l USING (broker, log_id) GROUP BY ALL
        ), committed AS (
          SELECT o.consumer_group, o.topic, o.broker, o.queue_id,
                 max_by(struct(o.committed_offset, o.commit_timestamp),
                        struct(coalesce(l.batch, 9223372036854775807), o.physical_offset, o.ordinal)) AS last
          FROM consumer_offsets o LEFT JOIN logs l USING (broker, log_id) GROUP BY ALL
        ), used AS (
          SELECT consumer_group, topic, broker, queue_id, max(last) AS last FROM (
            SELECT consumer_group, topic, broker, queue_id, last FROM committed
            UNION ALL
            SELECT DISTINCT consumer_group, topic, broker, queue_id, NULL FROM delivery_events
          ) GROUP BY ALL
        ), readers AS (
          SELECT consumer_group, topic,
                 map_from_entries(collect_list(struct(struct(broker, queue_id), last))) AS used
          FROM used GROUP BY ALL
        ), stored AS (
          SELECT topic, map_from_entries(collect_list(struct(struct(broker, queue_id), max_offset))) AS stored
          FROM ends GROUP BY ALL
        ), queues AS (
          SELECT consumer_group, topic, queue, try_element_at(used, queue) AS last,
                 try_element_at(stored, queue) AS max_offset
          FROM readers LEFT JOIN stored USING (topic)
          LATERAL VIEW explode(array_union(map_keys(used), coalesce(map_keys(stored), array()))) AS queue
        )
        SELECT consumer_group, topic, queue.broker AS broker, queue.queue_id AS queue_id,
               last.committed_offset AS committed_offset, max_offset,
               CASE WHEN max_offset >= last.committed_offset
                    THEN max_offset - last.committed_offset END AS lag,
               last.commit_timestamp AS commit_timestamp
        FROM queues
        """,
    ),
    View(
        "dead_letters",
        "Messages given up, with where they came from and why.",
        """
        SELECT origin.consumer_group AS consumer_group, origin.topic AS topic, broker,
               origin.queue_id AS queue_id, origin.queue_offset AS queue_offset,
               origin.attempt AS attempts, properties['LB_REASON'] AS reason, message_id, tag, keys, body,
               store_timestamp AS dead_lettered_timestamp
        FROM messages WHERE topic LIKE '\\\\%DLQ\\\\%%' AND origin IS NOT NULL
        """,
    ),
    View(
        "retries",
        "Deliveries after the first.",
        "SELECT * FROM delivery_events WHERE event = 'delivered' AND attempt > 1",
    ),
    View(
        "message_trace",
        "A message's life in order: stored, then what happened to it in each group.",
        """
        SELECT message_id, topic, store_timestamp AS at, 'stored' AS event, CAST(NULL AS STRING) AS consumer_group,
               CAST(NULL AS INT) AS attempt, born_host AS client, broker, queue_id, queue_offset, 0 AS step
        FROM messages
        UNION ALL
        SELECT message_id, topic, event_timestamp, event, consumer_group, attempt, client_id, broker, queue_id,
               queue_offset, CASE event WHEN 'delivered' THEN 2 WHEN 'expired' THEN 1 WHEN 'held' THEN 1 ELSE 3 END
        FROM delivery_events
        """,
    ),
    View(
        "delayed_messages",
        "Messages that wait, or waited, for their time.",
        "SELECT * FROM messages WHERE deliver_timestamp IS NOT NULL",
    ),
    View(
        "transactions",
        "Half messages and commits.",
        """
        SELECT *, CASE sys_flag & 12 WHEN 8 THEN 'committed' WHEN 12 THEN 'rolled_back' ELSE 'prepared' END
                  AS transaction_state
        FROM messages WHERE sys_flag & 12 <> 0 OR topic = 'RMQ_SYS_TRANS_HALF_TOPIC'
        """,
    ),
    View(
        "topic_stats",
        "Messages and bytes stored, by topic and minute.",
        """
        SELECT topic, date_trunc('MINUTE', store_timestamp) AS minute, count(*) AS messages,
               sum(length(body)) AS bytes
        FROM messages_live GROUP BY ALL
        """,
    ),
)
