"""CPU and time of a batch through the whole reput, Spark included, as batches add up; beside maintenance.

`python -m benchmarks.many_batches [--batches 300] [--around 100] [--record FILE]`

A gateway gets a trickle of messages, and a reput with `--target-freshness 0s` makes a batch of whatever is there. A line of
JSON for every `--around` batches: CPU seconds of a batch by process, its time, memory by process; then one with the ratio of
the last ones to the first. The first hundred are not counted: the JVM compiles its code then.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import load_generator, revision
from benchmarks.processes import cpu_by_process, job, rss_mb
from lakebroker_testing.gateway import Gateway, ProcessError, command

_WARM = 100


def measure(chosen: argparse.Namespace) -> list[dict[str, Any]]:
    """A point for every `--around` batches behind the first hundred, then the ratio."""
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name, contextlib.ExitStack() as jobs:
        folder = Path(name)
        lake = folder / "lake"
        # patient: it is not what is measured, and a refused send would end the trickle, and with it the batches
        gateway = jobs.enter_context(Gateway(folder / "gateway"))
        given = ["--brokers", gateway.address, "--lake", str(lake), "--json", "--target-freshness", "0s"]
        sending = [
            str(load_generator.program()),
            "send",
            f"-address={gateway.address}",
            f"-size={chosen.size}",
        ]
        sending += [f"-rate={chosen.rate}", "-senders=1", "-connections=1", "-seconds=86400"]
        jobs.enter_context(job(sending, folder, "send"))
        reput = jobs.enter_context(job(command("reput", *given), folder, "reput", piped=True))
        assert reput.stdout is not None
        began_s, before = 0.0, dict[str, float]()
        for number, _ in enumerate(reput.stdout, 1):
            if number == _WARM:
                maintained = command(
                    "maintain", "--lake", str(lake), "--json", "--every", chosen.maintain_every
                )
                jobs.enter_context(job(maintained, folder, "maintain"))
            if number < _WARM or (number - _WARM) % chosen.around:
                continue
            now_s, spent = time.monotonic(), cpu_by_process(reput.pid)
            if number > _WARM:
                points.append(
                    _point(number - _WARM, chosen.around, now_s - began_s, before, spent, reput.pid)
                )
                _tell(points[-1])
            if number - _WARM >= chosen.batches:
                break
            began_s, before = now_s, spent
        else:
            raise ProcessError(f"the reput ended: {(folder / 'reput.log').read_text()[-2000:]}")
    first, last = points[0], points[-1]
    cpu = [sum(each["cpu_ms"].values()) for each in (first, last)]
    points.append(
        {
            "benchmark": "many_batches",
            "batches": chosen.batches,
            "around": chosen.around,
            "cpu_ratio_last_to_first": round(cpu[1] / cpu[0], 3),
            "time_ratio_last_to_first": round(last["ms"] / first["ms"], 3),
        }
    )
    _tell(points[-1])
    return points


def _point(
    batch: int, around: int, took_s: float, before: dict[str, float], spent: dict[str, float], pid: int
) -> dict[str, Any]:
    used = {name: round((spent[name] - before.get(name, 0.0)) / around * 1000, 1) for name in spent}
    return {"batch": batch, "ms": round(took_s / around * 1000, 1), "cpu_ms": used, "rss_mb": rss_mb(pid)}


def _tell(point: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(point) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--around", type=int, default=100)
    parser.add_argument("--rate", type=int, default=100, help="messages a second")
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--maintain-every", default="30s")
    parser.add_argument("--record", type=Path, help="a file to which the lines are added, with the revision")
    chosen = parser.parse_args()
    points = measure(chosen)
    if chosen.record:
        with chosen.record.open("a") as file:
            file.writelines(json.dumps({"commit": revision.commit(), **each}) + "\n" for each in points)


if __name__ == "__main__":
    main()
