"""From the start of a broker's process to its first answered send, and its memory then, beside the real broker.

`python -m benchmarks.start [--passes N]`. A gateway, and RocketMQ 5.5.0 (broker with the proxy in its process, its name
server running already), each on an empty store, in turn. One line of JSON a start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import load_generator
from lakebroker_testing.gateway import Gateway, ProcessError
from lakebroker_testing.real_rocketmq import MeasuredRocketMQ

_TOPIC = "bench"
_LIMIT_S = 60.0
_SETTLE_S = 5.0
"""Memory is read so long after the first send, when what is loaded beside it is there."""


def first_send(address: str, pid: int) -> None:
    """Returns when a send was answered. Raises ProcessError when none is in time."""
    deadline = time.monotonic() + _LIMIT_S
    while True:
        try:
            load_generator.run("send", address, pid, topic=_TOPIC, count=1, senders=1, warm=0)
            return
        except ProcessError:
            if time.monotonic() > deadline:
                raise


def measured(name: str, began: float, address: str, pid: int) -> dict[str, Any]:
    first_send(address, pid)
    seconds = time.monotonic() - began
    cpu = _cpu_s(pid)
    time.sleep(_SETTLE_S)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    memory = {key: int(status[key].split()[0]) // 1024 for key in ("VmRSS", "RssAnon")}
    return {
        "server": name,
        "first_send_s": round(seconds, 3),
        "cpu_s": cpu,
        "rss_mb": memory["VmRSS"],
        "rss_anon_mb": memory["RssAnon"],
    }


def _cpu_s(pid: int) -> float:
    """Of the process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def gateway(folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    with Gateway(folder, patient=False) as started:
        assert started.process is not None
        return measured("lakebroker", began, started.address, started.process.pid)


def rocketmq(folder: Path) -> dict[str, Any]:
    with MeasuredRocketMQ(folder, {_TOPIC: (8, "NORMAL")}) as started:
        began = time.monotonic() - started.broker_start_s
        return measured("rocketmq proxy", began, started.address, started.pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--passes", type=int, default=3)
    chosen = parser.parse_args()
    load_generator.program()
    results: dict[str, list[dict[str, Any]]] = {}
    for number in range(chosen.passes):
        starts: tuple[Callable[[Path], dict[str, Any]], ...] = (gateway, rocketmq)
        for start in starts:
            with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as folder:
                line = {"pass": number, **start(Path(folder))}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            results.setdefault(line["server"], []).append(line)
    ours, theirs = results["lakebroker"], results["rocketmq proxy"]
    ratios = {
        name: round(_median(ours, name) / _median(theirs, name), 3)
        for name in ("first_send_s", "cpu_s", "rss_mb", "rss_anon_mb")
    }
    sys.stdout.write(json.dumps({"ratio of medians": ratios}) + "\n")


def _median(lines: list[dict[str, Any]], name: str) -> float:
    return statistics.median(float(line[name]) for line in lines)


if __name__ == "__main__":
    main()
