"""What planning a batch costs with a backlog of one segment and of a hundred, by path and by a gateway; without Spark.

`python -m benchmarks.planning [--plans 200]`. A line of JSON for each way: milliseconds of wall clock and of this process's CPU
for a plan, the least of five rounds, and the ratio of the two backlogs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import revision
from lakebroker_testing.gateway import Gateway
from lakebroker_testing.logs import written
from structured_streaming.source.data_source import LakebrokerDataSource

SEGMENTS = (1, 100)
_SEGMENT = 4 << 20
_BODY = 4000
_BATCH = 2 << 20
_PARTITION = 256 << 10
_ROUNDS = 5


def planned(plans: int, **logs: str) -> dict[str, float]:
    """Milliseconds of a plan: where the batch ends, and its ranges."""
    options = {**logs, "maxBytesPerTrigger": str(_BATCH), "partitionBytes": str(_PARTITION)}
    source = LakebrokerDataSource(options)
    stream: Any = source.streamReader(source.schema())
    start = stream.initialOffset()
    rounds = []
    for _ in range(_ROUNDS):
        began_s, used_s = time.perf_counter(), time.process_time()
        for _ in range(plans):
            end = stream.latestOffset(start, stream.getDefaultReadLimit())
            assert len(stream.partitions(start, end)) >= _BATCH // _PARTITION
        rounds.append((time.perf_counter() - began_s, time.process_time() - used_s))
    stream.stop()
    took_s, cpu_s = (min(each) for each in zip(*rounds, strict=True))
    return {"ms": round(took_s / plans * 1000, 3), "cpu_ms": round(cpu_s / plans * 1000, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plans", type=int, default=200)
    chosen = parser.parse_args()
    found: dict[str, dict[int, dict[str, float]]] = {"path": {}, "gateway": {}}
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        for segments in SEGMENTS:
            folder = Path(name, str(segments))
            records = segments * (_SEGMENT // (_BODY + 300)) * 99 // 100
            store = written(folder / "store", "broker-a", records, _BODY, _SEGMENT)
            found["path"][segments] = planned(chosen.plans, store=str(store))
            own = {"brokerClusterName": "c", "brokerName": "broker-a"}
            with Gateway(folder, patient=False, mappedFileSizeCommitLog=str(_SEGMENT), **own) as gateway:
                found["gateway"][segments] = planned(chosen.plans, brokers=gateway.address)
    for way, each in found.items():
        few, many = (each[segments] for segments in SEGMENTS)
        line = {
            "commit": revision.commit(),
            "benchmark": "planning",
            "by": way,
            **{f"{segments}_segments": each[segments] for segments in SEGMENTS},
            "ratio": round(many["ms"] / few["ms"], 2),
            "cpu_ratio": round(many["cpu_ms"] / few["cpu_ms"], 2),
        }
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
