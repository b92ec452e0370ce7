"""Topics that the broker keeps for itself: what `messages.is_system` and the views call the broker's own."""

from __future__ import annotations

NAMES = (
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "BenchmarkTest",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_TRACE_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
    "CHECKPOINT_TOPIC",
)
PREFIXES = ("rmq_sys_", "%RETRY%")
SUFFIX = "_REPLY_TOPIC"


def is_of_brokers(topic: str) -> bool:
    """Whether it is one of them, as `messages.is_system` and the views have it."""
    return topic in NAMES or topic.startswith(PREFIXES) or topic.endswith(SUFFIX)
