"""A topic and a group of a real broker's files: every field, each not as by default, and one of a newer broker."""

from __future__ import annotations

from typing import Any

TOPIC: dict[str, Any] = {
    "attributes": {"message.type": "FIFO", "cleanup.policy": "COMPACTION", "of.a.newer.broker": "x"},
    "order": False,
    "perm": 6,
    "readQueueNums": 8,
    "topicFilterType": "MULTI_TAG",
    "topicName": "t",
    "topicSysFlag": 3,
    "writeQueueNums": 8,
    "ofANewerBroker": [1],
}
EXPONENTIAL = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 1, "max": 9, "multiplier": 3}}
GROUP: dict[str, Any] = {
    "attributes": {"priority.factor": "5"},
    "brokerId": 1 << 40,
    "consumeBroadcastEnable": False,
    "consumeEnable": True,
    "consumeFromMinEnable": False,
    "consumeMessageOrderly": False,
    "consumeTimeoutMinute": 3,
    "groupName": "g",
    "groupRetryPolicy": EXPONENTIAL,
    "groupSysFlag": 2,
    "notifyConsumerIdsChangedEnable": False,
    "retryMaxTimes": 16,
    "retryQueueNums": 4,
    "subscriptionDataSet": [{"topic": "t", "expression": "*", "expressionType": "TAG", "version": 7}],
    "whichBrokerWhenConsumeSlowly": 2,
    "ofANewerBroker": {"on": True},
}
