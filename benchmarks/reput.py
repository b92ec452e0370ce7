"""Bulk rate and freshness of the reput; prints one line of JSON for each.

`python -m benchmarks.reput [--records 500000] [--rate 100] [--seconds 30]`. CPU is that of the job and all its
children. Freshness: from a message's store timestamp to the commit of the batch that holds it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.send_receive import percentile, send
from demo.processes import ROOT, Gateway, Reput, command
from store.message_store import MessageStore
from store.record import Host, PendingRecord, encode_properties


def bulk(records: int, size: int) -> dict[str, Any]:
    """A store written directly, then one `reput --once`."""
    host = Host("127.0.0.1", 10911)
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        folder = Path(name)
        store = MessageStore.open(
            folder / "store", broker="b", cluster="c", store_host=host, segment_size=1 << 28
        )
        body = os.urandom(size)
        for first in range(0, records, 1000):
            store.append(
                [
                    PendingRecord(
                        "bench",
                        n % 8,
                        body,
                        encode_properties({"KEYS": f"k{n}", "UNIQ_KEY": f"{n:032X}"}),
                        1_700_000_000_000,
                        host.packed,
                    )
                    for n in range(first, min(first + 1000, records))
                ]
            )
        store.close()
        before, began = os.times(), time.monotonic()
        arguments = command(
            "reput", "--store", f"{folder}/store", "--lake", f"{folder}/lake", "--once", "--json"
        )
        done = subprocess.run(arguments, cwd=ROOT, check=True, capture_output=True, text=True)
        wall, after = time.monotonic() - began, os.times()
        batches = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        progress = _progress(folder / "lake")
        spent = progress[-1] - progress[0] if len(progress) > 1 else wall
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        steady = sum(batch["records"] for batch in batches[1:])
        return {
            "benchmark": "reput",
            "records": records,
            "bytes": size,
            "records_per_s_with_start": round(records / wall),
            "records_per_s_after_first_batch": round(steady / spent) if steady else None,
            "cpu_s_per_million_with_start": round(cpu / records * 1e6, 1),
        }


def _progress(lake: Path) -> list[float]:
    from deltalake import DeltaTable

    rows = DeltaTable(str(lake / "reput_progress")).to_pyarrow_table()["commit_timestamp"].to_pylist()
    return sorted(row.timestamp() for row in rows)


def freshness(rate: int, seconds: int) -> dict[str, Any]:
    """A gateway and a continuous reput, a steady trickle of messages."""
    with (
        tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name,
        Gateway(Path(name)) as gateway,
        Reput(Path(name) / "lake", Path(name) / "reput.log", "--brokers", gateway.address) as reput,
    ):
        asyncio.run(send(gateway.address, 10, 1, 1024))
        while not reput.batches():
            time.sleep(0.2)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            began = time.monotonic()
            asyncio.run(send(gateway.address, rate // 4, 1, 1024))
            time.sleep(max(0.0, 0.25 - (time.monotonic() - began)))
        time.sleep(5)
        reput.stop()
        return {"benchmark": "freshness", "rate": rate, **_freshness(Path(name) / "lake")}


def _freshness(lake: Path) -> dict[str, float]:
    from deltalake import DeltaTable

    progress = DeltaTable(str(lake / "reput_progress")).to_pyarrow_table().sort_by("end_offset").to_pylist()
    messages = DeltaTable(str(lake / "messages")).to_pyarrow_table(
        columns=["physical_offset", "store_timestamp"]
    )
    ages = []
    for row in messages.to_pylist()[10:]:
        batch = next(p for p in progress if p["end_offset"] > row["physical_offset"])
        ages.append((batch["commit_timestamp"] - row["store_timestamp"]).total_seconds())
    return {
        "messages": len(ages),
        "batches": len(progress),
        "p50_s": percentile(ages, 0.5) / 1000,
        "p95_s": percentile(ages, 0.95) / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=30)
    chosen = parser.parse_args()
    for size in (100, 1024):
        print(json.dumps(bulk(chosen.records, size)), flush=True)
    print(json.dumps(freshness(chosen.rate, chosen.seconds)), flush=True)


if __name__ == "__main__":
    main()
