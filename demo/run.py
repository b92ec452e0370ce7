"""`make demo`: gateway, official client traffic, reput into Delta, SQL over it; checks its own answers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from demo import chart, workload
from demo.questions import QUESTIONS
from lakebroker_testing.gateway import ROOT, Gateway, Reput, command
from lakebroker_testing.official_client import interpreter
from structured_streaming.sql import lake_session

OUTPUT = ROOT / "demo-output"
CATCH_UP_S = 180.0
NAME_SERVER = {"lakeWithNamesrv": "true", "lakeNamesrvListenPort": "0", "listenPort": "0"}
"""The gateway registers with a name server in its own process."""
console = Console(width=max(Console().width, 110))


class DemoError(Exception):
    """The demo did not do what it says."""


def main() -> int:
    """Returns the exit status: 0 when every answer agrees with what the client counted."""
    started = time.monotonic()
    os.environ["TZ"] = "UTC"  # pyspark gives times in the local zone
    time.tzset()
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir()
    lake = OUTPUT / "lake"
    try:
        with Progress(
            TextColumn("{task.description:32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            counted = traffic(lake, progress)
        wrong = ask(lake, counted)
    except Exception as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}")
        for log in sorted(OUTPUT.rglob("*.log")):
            console.print(f"--- end of {log.relative_to(ROOT)}\n{log.read_text()[-1500:]}", markup=False)
        return 1
    for sentence in wrong:
        console.print(f"[bold red]Wrong answer:[/] {escape(sentence)}")
    explore(lake, time.monotonic() - started)
    return 1 if wrong else 0


def traffic(lake: Path, progress: Progress) -> workload.Counted:
    """Runs gateway, reput and clients until everything sent is consumed and in the lake."""
    counted = workload.Counted()
    setup = progress.add_task("official client, gateway, reput", total=3)
    interpreter()
    progress.advance(setup)
    with Gateway(OUTPUT, **NAME_SERVER) as gateway:
        progress.advance(setup)
        group = ["group", "create", "audit", "--retry-max", str(workload.AUDIT_RETRIES)]
        subprocess.run(
            command(*group, "--gateway", gateway.address), check=True, cwd=ROOT, capture_output=True
        )
        with Reput(lake, OUTPUT / "reput.log", "--brokers", gateway.address, "--trigger", "1s") as reput:
            first_batch(reput)
            progress.advance(setup)
            sending = progress.add_task("messages sent", total=workload.planned_messages())
            settling = progress.add_task("services that settled all orders", total=2)
            consume(gateway.address, counted, progress, sending, settling)
            catch_up(reput, progress)
            status = reput.stop()
            if status != 0:
                raise DemoError(f"the reput ended with status {status}")
        if gateway.terminate() != 0:
            raise DemoError("the gateway did not stop cleanly")
    return counted


def consume(address: str, counted: workload.Counted, progress: Progress, sending: Any, settling: Any) -> None:
    """Producer and two consumers side by side; raises what one of them raised."""
    errors: list[Exception] = []
    total = workload.planned_orders()

    def guarded(work: Callable[[], None], task: Any) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
                if task is not None:
                    progress.advance(task)
            except Exception as error:
                errors.append(error)

        return run

    jobs: list[tuple[Callable[[], None], Any]] = [
        (lambda: workload.bill(address, counted, total), settling),
        (lambda: workload.audit(address, counted, total), settling),
        (lambda: workload.produce(address, counted, lambda n: progress.advance(sending, n)), None),
    ]
    threads = [threading.Thread(target=guarded(work, task)) for work, task in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def first_batch(reput: Reput) -> None:
    """Waits until Spark runs and the lake holds what there is (the group made above), before traffic begins."""
    deadline = time.monotonic() + CATCH_UP_S
    while not reput.batches():
        if time.monotonic() > deadline:
            raise DemoError(f"the reput committed nothing in {CATCH_UP_S:g} s")
        time.sleep(0.2)


def catch_up(reput: Reput, progress: Progress) -> None:
    """Waits for the minute's statistics and dead letters to be written and for the lake to hold them."""
    task = progress.add_task("lake has everything", total=1)
    deadline = time.monotonic() + CATCH_UP_S
    quiet = 0
    last = -1
    while quiet < 5:
        if time.monotonic() > deadline:
            raise DemoError(f"the lake was still behind after {CATCH_UP_S:g} s")
        batches = reput.batches()
        quiet = quiet + 1 if batches and len(batches) == last and not batches[-1]["lag_bytes"] else 0
        last = len(batches)
        time.sleep(1)
    progress.advance(task)


def ask(lake: Path, counted: workload.Counted) -> list[str]:
    """Asks every question, prints the answers, draws the chart; returns what is wrong."""
    console.print("starting Spark for SQL ...")  # a status shows nothing where the output is no terminal
    session = lake_session(str(lake))
    wrong = []
    answers = []
    for question in QUESTIONS:
        frame = session.sql(question.sql)
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        table = Table(*frame.columns, title=question.title, title_justify="left")
        for row in rows[:12]:
            table.add_row(*(shown(row[column]) for column in frame.columns))
        console.print(table)
        if problem := question.check(rows, counted):
            wrong.append(problem)
        answers.append((question.title, question.sql, frame.columns, rows))
    throughput = [row.asDict() for row in session.sql(chart.THROUGHPUT_SQL).collect()]
    lag = [row.asDict() for row in session.sql(chart.LAG_SQL).collect()]
    chart.draw(throughput, lag, OUTPUT / "throughput-and-lag.png")
    chart.page(answers, OUTPUT / "throughput-and-lag.png", OUTPUT / "index.html")
    session.stop()
    return wrong


def shown(value: Any) -> str:
    """A value as the tables show it."""
    if value is None:
        return ""
    if hasattr(value, "strftime"):
        return str(value.strftime("%H:%M:%S.%f"))[:-3]
    return str(value)


def explore(lake: Path, seconds: float) -> None:
    """Says where things are and how to go on."""
    console.print(
        f"Done in {seconds:.0f} s. Chart and page: demo-output/throughput-and-lag.png, demo-output/index.html"
    )
    console.print("\nGo on exploring:", style="bold")
    name = lake.relative_to(ROOT)
    console.print(f"  .venv/bin/lakebroker sql --lake {name}", markup=False)
    console.print(
        f'  .venv/bin/lakebroker sql --lake {name} --format csv "SELECT * FROM consumer_lag"', markup=False
    )
    console.print("  .venv/bin/lakebroker gateway --store ./store    # a broker of your own", markup=False)


if __name__ == "__main__":
    sys.exit(main())
