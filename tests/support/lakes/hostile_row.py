"""A lake of one message, whose values are lost or do harm where they are printed carelessly: markup, an escape sequence, a formula, bytes
that are no text, what is between milliseconds."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from tests.support.lakes.empty import empty_lake
from tests.support.lakes.viewed import add

AT_US = 1_700_000_000_123_456
AT = "2023-11-14T22:13:20.123456Z"
MESSAGE_ID = "[/x]\x1b[2J"
BODY = b"\x00\xff"
ORIGIN = {"topic": "o", "queue_id": 1, "queue_offset": 2, "consumer_group": "g", "attempt": 3}
ANSWER = {
    "store_timestamp": AT,
    "message_id": MESSAGE_ID,
    "tag": "=1+1",
    "message_group": "",
    "keys": ["a", ""],
    "properties": {"k": "v"},
    "body": base64.b64encode(BODY).decode(),
    "origin": ORIGIN,
    "flag": None,
}
"""The message in JSON, with the columns that are asked for."""


def hostile_lake(folder: Path, **progress: Any) -> Path:
    """`progress`: more of its row in `reput_progress`."""
    lake = empty_lake(str(folder)).path
    place = {"broker": "b", "log_id": "l"}
    message = {
        **place,
        **ANSWER,
        "physical_offset": 0,
        "topic": "t",
        "properties": [("k", "v")],
        "body": BODY,
        "store_timestamp": AT_US,
        "is_system": False,
    }
    add(lake, {"messages": [message], "reput_progress": [{**place, "batch": 1, "end_offset": 1, **progress}]})
    return lake
