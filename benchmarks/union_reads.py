"""Asks the union of `messages` over and over, in one session; a line of JSON for each answer. For other benchmarks.

`python -m benchmarks.union_reads LAKE LOGS PAUSE_S COUNT`, until so many answers came; 0: until a signal ends it. LOGS is
options of the data source, as JSON.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

from structured_streaming.sql import query, union_session

_NEWEST = "SELECT unix_micros(max(store_timestamp)) AS newest, count(*) AS messages FROM messages"
"""Of all that was ever sent: Delta's statistics know neither of the two for the rows below an offset."""


def main() -> None:
    lake, logs, pause_s, count = sys.argv[1:]
    session, tables = union_session(lake, json.loads(logs))
    for _ in range(int(count)) if int(count) else itertools.count():
        began_us = time.time_ns() // 1000
        answer: dict[str, Any] = query(session, _NEWEST, tables=tables).to_pylist()[0]
        line = {
            "began_us": began_us,
            "took_s": (time.time_ns() // 1000 - began_us) / 1e6,
            "older_s": (began_us - answer["newest"]) / 1e6 if answer["newest"] is not None else None,
            "messages": answer["messages"],
            "tail_bytes": tables.tail_bytes,
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        time.sleep(float(pause_s))


if __name__ == "__main__":
    main()
