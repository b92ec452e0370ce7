"""Names: what a topic, group or tag may be called, and which groups are the system's (topics: `system_topics.py`).

Source: Apache RocketMQ's `TopicValidator`, `Validators`, `MixAll` and `MessageConst` (names and limits).
Owns the rules only; `messaging/checks.py` turns a broken one into a status.
"""

from __future__ import annotations

import re

JOURNAL_TOPIC = "rmq_sys_lakebroker_journal"
RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
TOPIC_MAX_LENGTH = 127
"""Characters; retry and dead-letter topics may have `RETRY_TOPIC_MAX_LENGTH`."""
RETRY_TOPIC_MAX_LENGTH = 255
GROUP_MAX_LENGTH = 120

NAME_PATTERN = re.compile(r"[%|a-zA-Z0-9_-]+")
LITE_TOPIC_PATTERN = re.compile(r"[a-zA-Z0-9_-]+")
CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_CONSUMER",
        "DEFAULT_PRODUCER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_PULL",
    }
)
_SYSTEM_GROUP_PREFIX = "CID_RMQ_SYS_"

PRIORITY_PROPERTY = "_SYS_MSG_PRIORITY_"
RESERVED_PROPERTIES = frozenset(
    [
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_GROUP",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "MSG_REGION",
        "TRACE_ON",
        "UNIQ_KEY",
        "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "INNER_NUM",
        "INNER_BASE",
        "DUP_INFO",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "__transactionId__",
        "TRANSACTION_CHECK_TIMES",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "__SHARDINGKEY",
        "PROPERTY_FORWARD_QUEUE_ID",
        "REDIRECT",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "__LITE_TOPIC",
        "TRACE_CONTEXT",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "__BORNHOST",
        "BORN_TIMESTAMP",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_LEVEL",
        "TIMER_DELAY_MS",
        "__CRC32#",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        PRIORITY_PROPERTY,
        "LB_ORIGIN",
        "LB_REASON",
        "LB_WAITS_FROM",
    ]
)
"""Property keys a client may not set itself; the last three are lakebroker's (see `delivery/moves.py`, `deferred/halves.py`)."""


def is_system_group(group: str) -> bool:
    """Whether `group` belongs to RocketMQ's own parts."""
    return group in _SYSTEM_GROUPS or group.startswith(_SYSTEM_GROUP_PREFIX)


def dead_letter_topic(group: str) -> str:
    """Where messages of `group` go after their last attempt."""
    return DLQ_PREFIX + group
