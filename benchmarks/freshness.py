"""How old a message is when the tables have it, and when a union answer has it, while messages are sent at a steady rate.

`python -m benchmarks.freshness [--rates 100,2000] [--seconds 30] [--target-freshness 1s] [--record FILE]`

One gateway, and beside it `lakebroker reput`, `lakebroker maintain --every`, and a Spark session that asks the union of
`messages` over and over. A line of JSON for each rate.

| figure | from | to |
|---|---|---|
| `tables_*_s` | a message's store timestamp | the commit of its batch's progress row is seen in the table's log |
| `union_older_s` | the newest store timestamp in an answer | the moment that its query began; below 0: it came afterwards |
| `union_fetched_per_needed` | bytes of the log behind the lake's progress at each query | bytes that the gateway sent for queries |
| `*_cores` | CPU seconds of a job a second, JVM and workers included | |
| `files` | a maintenance round after the end, by table | `files_allowed`: twice what --target-file-size needs for its bytes |
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from benchmarks import load_generator, revision
from benchmarks.processes import cpu_s, job, rss_mb
from broker_gateway.cli.units import size as bytes_of
from lakebroker_testing.gateway import ROOT, Gateway, ProcessError, Reput, command
from lakebroker_testing.programs import until_ready
from structured_streaming.tables import TABLES

console = Console(stderr=True)
PEERS = (("Zerobus Ingest (published)", "5", "30", "at least once"),)
_LOOK_S = 0.01
_READ = "lakebroker_log_bytes_read_total"


class Follower:
    """Sees the commits of a lake's progress as a reader does that follows the table's log."""

    def __init__(self, lake: Path) -> None:
        self._log = lake / "reput_progress" / "_delta_log"
        self.ends: list[int] = []
        self.seen_s: list[float] = []
        self._version = 1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            while (commit := self._log / f"{self._version:020}.json").exists():
                now_s = time.time()
                for line in commit.read_text().splitlines():
                    transaction = json.loads(line).get("txn", {"appId": ""})
                    if "/" in transaction["appId"]:
                        self.ends.append(transaction["version"])
                        self.seen_s.append(now_s)
                self._version += 1


def measure(rate: int, chosen: argparse.Namespace) -> dict[str, Any]:
    """One rate."""
    with tempfile.TemporaryDirectory(prefix="lakebroker-bench-") as name, contextlib.ExitStack() as jobs:
        folder = Path(name)
        lake = folder / "lake"
        gateway = jobs.enter_context(Gateway(folder / "gateway", patient=False))
        assert gateway.process is not None
        gateway_pid = gateway.process.pid
        given = ["--target-freshness", chosen.target_freshness, "--target-file-size", chosen.target_file_size]
        log = folder / "reput.log"
        reput = jobs.enter_context(Reput(lake, log, "--brokers", gateway.address, *given))
        sent = {"rate": rate, "size": chosen.size, "senders": 4, "connections": 1}
        load_generator.run("send", gateway.address, gateway_pid, count=10, senders=1, connections=1)
        until_ready("the reput", reput.process, log, reput.batches)
        sessions = {"reput": reput.process.pid, "gateway": gateway_pid}
        if chosen.maintain_every:
            target = ["--target-file-size", chosen.target_file_size]
            arguments = command("maintain", "--lake", str(lake), "--json", "--every", chosen.maintain_every)
            sessions["maintain"] = jobs.enter_context(job([*arguments, *target], folder, "maintain")).pid
        union = folder / "union.jsonl"
        if chosen.union_pause >= 0:
            given = [str(lake), json.dumps({"brokers": gateway.address}), str(chosen.union_pause), "0"]
            arguments = [sys.executable, "-m", "benchmarks.union_reads", *given]
            asking = jobs.enter_context(job(arguments, folder, "union"))
            sessions["union"] = asking.pid
            until_ready("the union", asking, folder / "union.log", lambda: union.stat().st_size > 0)
        follower = Follower(lake)
        load_generator.run("send", gateway.address, gateway_pid, warm=1, seconds=chosen.warm, **sent)
        before = {
            name: cpu_s(gateway_pid) if name == "gateway" else cpu_s(session=pid)
            for name, pid in sessions.items()
        }
        began_s, read, held = time.time(), _bytes_read(gateway), follower.ends[-1]
        load_generator.run("send", gateway.address, gateway_pid, warm=0, seconds=chosen.seconds, **sent)
        ended_s, read, held = time.time(), _bytes_read(gateway) - read, follower.ends[-1] - held
        after = {
            name: cpu_s(gateway_pid) if name == "gateway" else cpu_s(session=pid)
            for name, pid in sessions.items()
        }
        memory = sum(rss_mb(sessions["reput"]).values())
        time.sleep(3)
        follower.end()
        answers = [json.loads(line) for line in _lines(union)] if "union" in sessions else []
        reput.stop()
        jobs.close()
        found: dict[str, Any] = {
            "benchmark": "freshness",
            "rate": rate,
            "seconds": chosen.seconds,
            "body_bytes": chosen.size,
            "options": f"--target-freshness {chosen.target_freshness} --target-file-size {chosen.target_file_size}",
            "maintain_every": chosen.maintain_every,
            **_ages(lake, follower, began_s, ended_s),
            "reput_rss_mb": memory,
            **{
                f"{name}_cores": round((after[name] - before[name]) / (ended_s - began_s), 3)
                for name in sessions
            },
            **_answers(
                [each for each in answers if began_s * 1e6 <= each["began_us"] < ended_s * 1e6], read - held
            ),
            **_files(lake, chosen.target_file_size),
        }
        return found


def _ages(lake: Path, follower: Follower, began_s: float, ended_s: float) -> dict[str, Any]:
    columns = ["physical_offset", "store_timestamp"]
    messages = DeltaTable(str(lake / "messages")).to_pyarrow_table(columns=columns)
    stored_s = messages["store_timestamp"].cast("timestamp[us]").cast("int64").to_numpy() / 1e6
    offsets = messages["physical_offset"].to_numpy()
    counted = (stored_s >= began_s) & (stored_s < ended_s)
    batch = np.searchsorted(follower.ends, offsets[counted], side="right")
    if len(batch) and batch.max() >= len(follower.ends):
        raise ProcessError("the reput did not come to the last messages within 3 s")
    ages = np.array(follower.seen_s)[batch] - stored_s[counted]
    p50, p95, p99 = np.percentile(ages, [50, 95, 99])
    batches = sum(began_s <= seen < ended_s for seen in follower.seen_s)
    return {
        "messages": len(ages),
        "batches": batches,
        "tables_p50_s": round(p50, 3),
        "tables_p95_s": round(p95, 3),
        "tables_p99_s": round(p99, 3),
    }


def _answers(answers: list[dict[str, Any]], fetched: int) -> dict[str, Any]:
    if not answers:
        return {}
    older, took = ([each[name] for each in answers] for name in ("older_s", "took_s"))
    needed = sum(each["tail_bytes"] for each in answers)
    return {
        "union_answers": len(answers),
        "union_older_p50_s": round(float(np.percentile(older, 50)), 3),
        "union_older_max_s": round(max(older), 3),
        "union_took_p50_s": round(float(np.percentile(took, 50)), 3),
        "union_took_p95_s": round(float(np.percentile(took, 95)), 3),
        "union_needed_bytes": needed,
        "union_fetched_bytes": fetched,
        "union_fetched_per_needed": round(fetched / needed, 3) if needed else None,
    }


def _files(lake: Path, target: str) -> dict[str, Any]:
    """Of each table that has files, after a round of maintenance; beside twice what the target gives."""
    round_of = [*command("maintain", "--lake", str(lake)), "--target-file-size", target]
    subprocess.run(round_of, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    there, allowed = {}, {}
    for name in TABLES:
        sizes = pa.table(DeltaTable(str(lake / name)).get_add_actions())["size_bytes"].to_pylist()
        if sizes:
            there[name] = len(sizes)
            allowed[name] = 2 * -(-sum(sizes) // bytes_of("--target-file-size", target))
    return {"files": there, "files_allowed": allowed}


def _bytes_read(gateway: Gateway) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.metrics_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return int(float(next(line for line in lines if line.startswith(_READ)).rpartition(" ")[2]))


def _lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def show(found: list[dict[str, Any]]) -> None:
    """The figures beside what peers publish, for people."""
    table = Table("", "p50 s", "p95 s", "delivery", "cores", title="append to visible in Delta")
    for each in found:
        cores = f"reput {each['reput_cores']}, maintain {each.get('maintain_cores', '-')}"
        ages = (f"{each['tables_p50_s']:.2f}", f"{each['tables_p95_s']:.2f}")
        table.add_row(f"tables, {each['rate']:,} messages a second", *ages, "exactly once", cores)
        if "union_answers" in each:
            ages = (f"{each['union_older_p50_s']:.2f}", f"{each['union_older_max_s']:.2f} (most)")
            said = f"an answer in {each['union_took_p50_s']:.1f} s"
            table.add_row(f"union, {each['rate']:,} messages a second", *ages, said, str(each["union_cores"]))
    for peer in PEERS:
        table.add_row(*peer, "")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rates", default="100,2000", help="messages a second, divided by commas")
    parser.add_argument("--seconds", type=int, default=30, help="of each rate")
    parser.add_argument("--warm", type=int, default=10, help="seconds before them that are not counted")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--target-freshness", default="1s", help="of the reput")
    parser.add_argument("--target-file-size", default="64MiB", help="of reput and maintenance")
    parser.add_argument("--maintain-every", default="30s", help="pause of maintenance; empty: none")
    parser.add_argument(
        "--union-pause", type=float, default=1.0, help="seconds between queries; below 0: none"
    )
    parser.add_argument("--record", type=Path, help="a file to which the lines are added too")
    chosen = parser.parse_args()
    load_generator.program()
    found = []
    for rate in map(int, chosen.rates.split(",")):
        found.append(measure(rate, chosen))
        line = json.dumps({"commit": revision.commit(), **found[-1]})
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if chosen.record:
            with chosen.record.open("a") as file:
                file.write(line + "\n")
    show(found)


if __name__ == "__main__":
    main()
