"""Topics to which RocketMQ's clients send what they trace: who sent and consumed which messages.

Source: `TopicValidator.RMQ_SYS_TRACE_TOPIC`; `TraceConstants.TRACE_TOPIC_PREFIX`, followed by a region, with the access channel
CLOUD. A client may name another topic instead, which nothing tells from others.
"""

from __future__ import annotations

TRACE_TOPIC, TRACE_PREFIX = "RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_"


def is_trace_topic(topic: str) -> bool:
    """Whether it is one of those."""
    return topic == TRACE_TOPIC or topic.startswith(TRACE_PREFIX)
