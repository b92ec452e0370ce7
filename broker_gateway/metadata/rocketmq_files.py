"""The files of `config/` as a RocketMQ broker reads them, written from what our journal knows.

| file | from |
|---|---|
| `topics.json` | topics; one that accepts every message type is MIXED |
| `subscriptionGroup.json` | consumer groups |
| `consumerOffset.json` | for every group and queue the first offset that is not settled |

An offset is all that the original keeps of a group on a queue: messages behind it that were acknowledged already,
before an older one was, are delivered again there.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from broker_gateway.delivery.queue_delivery import QueueDelivery
from broker_gateway.metadata.catalog import Catalog, Group, Topic
from store.segment import sync_folder

CONFIG_FOLDER = "config"


def write_config(root: Path, catalog: Catalog, states: Iterable[QueueDelivery], now_ms: int) -> list[Path]:
    """Writes all of them, each whole or not at all, the old one kept as `.bak`; returns their paths."""
    folder = root / CONFIG_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    version = {"counter": 1, "stateVersion": 0, "timestamp": now_ms}
    offsets: dict[str, dict[str, int]] = defaultdict(dict)
    for state in states:
        group, topic, queue_id = state.key
        offsets[f"{topic}@{group}"][str(queue_id)] = state.committed
    files: dict[str, dict[str, Any]] = {
        "topics.json": {
            "dataVersion": version,
            "topicConfigTable": {topic.name: _topic(topic) for topic in catalog.topics()},
        },
        "subscriptionGroup.json": {
            "dataVersion": version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {group.name: _group(group) for group in catalog.groups()},
        },
        "consumerOffset.json": {"dataVersion": version, "offsetTable": offsets},
    }
    for name, content in files.items():
        _write(folder / name, json.dumps(content, indent=1, sort_keys=True))
    sync_folder(folder)
    return [folder / name for name in files]


def _topic(topic: Topic) -> dict[str, Any]:
    kinds = topic.accept_message_types
    return {
        "attributes": {"message.type": kinds[0] if len(kinds) == 1 else "MIXED"},
        "order": False,
        "perm": topic.permission,
        "readQueueNums": topic.read_queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.write_queues,
    }


def _group(group: Group) -> dict[str, Any]:
    return {
        "attributes": {},
        "brokerId": 0,
        "consumeBroadcastEnable": True,
        "consumeEnable": group.consume_enabled,
        "consumeFromMinEnable": True,
        "consumeMessageOrderly": group.fifo,
        "consumeTimeoutMinute": 15,
        "groupName": group.name,
        "groupRetryPolicy": {"type": "CUSTOMIZED"},
        "groupSysFlag": 0,
        "notifyConsumerIdsChangedEnable": True,
        "retryMaxTimes": group.retry_max_times,
        "retryQueueNums": 1,
        "whichBrokerWhenConsumeSlowly": 1,
    }


def _write(path: Path, text: str) -> None:
    staged = path.with_suffix(".json.tmp")
    with staged.open("w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.replace(path, path.with_suffix(".json.bak"))
    os.replace(staged, path)
