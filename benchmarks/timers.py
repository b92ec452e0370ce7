"""Messages that wait for their delivery time, a million of them: memory, starts, and how late those are that fall due.

`python -m benchmarks.timers [--pending 1000000] [--due 100000] [--record FILE]`

| step | what |
|---|---|
| start | of a broker with nothing that waits, then with all of it: without the file of what waits, and with it |
| memory | resident anonymous memory, above that of the broker with nothing that waits |
| due | `--due` more that fall due within `--spread` seconds, beside `--rate` usual sends a second: how much later than its time each copy is stored; with `--receive` beside receivers that take all of it |

One line of JSON in the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import load_generator, revision
from benchmarks.processes import cpu_s
from broker_gateway.deferred.due_file import FOLDER
from broker_gateway.deferred.put_off import DELIVER_MS
from lakebroker_testing.gateway import Gateway, ProcessError
from lakebroker_testing.logs import open_store
from lakebroker_testing.timers import SEGMENT, write_timers
from store.log.record import decode_properties

TOPIC = "bench"
_HOUR_MS = 3_600_000
_SETTLE_S = 5.0
"""Memory is read so long after a start, when what is loaded beside it is there."""
_BEFORE_S = 15.0
"""From the last append to the first that falls due: the broker starts meanwhile."""
_WRITTEN_A_SECOND = 5000
"""Records that are written before the first of them falls due; far less than can be."""


def started(gateway: Gateway) -> dict[str, float]:
    """Starts it: seconds and CPU seconds until it serves, and memory when it is quiet."""
    began = time.monotonic()
    gateway.start()
    seconds = time.monotonic() - began
    assert gateway.process is not None
    cpu = cpu_s(gateway.process.pid)
    time.sleep(_SETTLE_S)
    return {"s": round(seconds, 2), "cpu_s": round(cpu, 2), "rss_anon_mb": _anonymous_mb(gateway.process.pid)}


def lateness(store: Path, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """By how many ms the copies of such timers were stored behind their times."""
    opened = open_store(store, "broker-a", cluster="DefaultCluster", segment_size=SEGMENT)
    mark = f"UNIQ_KEY\x01{name}".encode()
    late = []
    for record in opened.records_with(mark, opened.min_offset):
        if record.topic == TOPIC:
            due = decode_properties(record.properties)[DELIVER_MS]
            late.append(record.store_timestamp - int(due))
    opened.close()
    return np.array(late, np.int64)


def measured(gateway: Gateway, chosen: argparse.Namespace) -> dict[str, Any]:
    steps: dict[str, Any] = {"nothing waits": started(gateway)}
    load_generator.run("send", gateway.address, 0, topic=TOPIC, count=1, senders=1, warm=0)
    gateway.terminate()
    write_timers(
        gateway.store, TOPIC, chosen.pending, time.time() * 1000 + 2 * _HOUR_MS, 20 * _HOUR_MS, "FAR"
    )
    for file in (gateway.store / FOLDER).glob("timers.*"):
        file.unlink()
    steps["without the file"] = started(gateway)
    gateway.terminate()
    steps["with the file"] = started(gateway)
    gateway.terminate()
    steps["due"] = due(gateway, chosen)
    return steps


def due(gateway: Gateway, chosen: argparse.Namespace) -> dict[str, Any]:
    """Has timers fall due beside usual sends. Raises ProcessError when some were lost, doubled or early."""
    first_due = time.time_ns() // 1_000_000 + int((_BEFORE_S + chosen.due / _WRITTEN_A_SECOND) * 1000)
    write_timers(gateway.store, TOPIC, chosen.due, first_due, chosen.spread * 1000, "DUE")
    gateway.start()
    assert gateway.process is not None
    if (wait_s := first_due / 1000 - 1 - time.time()) < 0:
        raise ProcessError(f"the broker started {-wait_s:.1f} s too late for what was to fall due")
    time.sleep(wait_s)
    sent: dict[str, Any] = {}
    load = threading.Thread(target=lambda: sent.update(_load(gateway, chosen)))
    load.start()
    load.join()
    if not sent:
        raise ProcessError("the load generator failed")
    gateway.terminate()
    late = lateness(gateway.store, "DUE")
    if len(late) != chosen.due or late.min() < 0:
        raise ProcessError(f"{len(late)} of {chosen.due} were delivered, the earliest {late.min()} ms late")
    return {
        "messages": chosen.due,
        "spread_s": chosen.spread,
        "late_p50_ms": int(np.percentile(late, 50)),
        "late_p99_ms": int(np.percentile(late, 99)),
        "late_max_ms": int(late.max()),
        "usual": sent,
    }


def _load(gateway: Gateway, chosen: argparse.Namespace) -> dict[str, Any]:
    assert gateway.process is not None
    flags = {"rate": chosen.rate, "seconds": chosen.spread + 2, "topic": TOPIC, "warm": 0.5}
    mode = "through" if chosen.receive else "send"
    return load_generator.run(mode, gateway.address, gateway.process.pid, **flags)


def _anonymous_mb(pid: int) -> float:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return round(int(status["RssAnon"].split()[0]) / 1024, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pending", type=int, default=1_000_000)
    parser.add_argument("--due", type=int, default=100_000)
    parser.add_argument("--spread", type=float, default=10.0, help="seconds within which these fall due")
    parser.add_argument("--rate", type=int, default=500, help="usual sends a second meanwhile")
    parser.add_argument("--receive", action="store_true", help="with receivers")
    parser.add_argument("--record", type=Path, help="a file to which the line is added too")
    chosen = parser.parse_args()
    load_generator.program()
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name:
        gateway = Gateway(Path(name), mappedFileSizeCommitLog=str(SEGMENT))
        try:
            steps = measured(gateway, chosen)
        finally:
            if gateway.process is not None and gateway.process.poll() is None:
                gateway.kill()
    more_mb = {
        name: round(steps[name]["rss_anon_mb"] - steps["nothing waits"]["rss_anon_mb"], 1)
        for name in ("without the file", "with the file")
    }
    line = {
        "commit": revision.commit(),
        "benchmark": "timers",
        "pending": chosen.pending,
        **steps,
        "more_rss_anon_mb": more_mb,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    if chosen.record:
        with chosen.record.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
