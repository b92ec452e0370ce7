"""`make demo`: gateway, official client traffic, reput into Delta, SQL over it; checks its own answers.

With --keep (`make demo KEEP=1`) gateway and reput go on afterwards, to look at, until ctrl-C.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker_gateway.cli.signals import Signalled, raised_signals, signals_held
from demo import chart, keeping, workload
from demo.folder import FolderError, emptied
from demo.questions import QUESTIONS, Answer
from lakebroker_testing.gateway import ROOT, Gateway, ProcessError, Reput, command
from lakebroker_testing.official_client import interpreter
from structured_streaming.embedded.engine import EmbeddedEngine

CATCH_UP_S = 900.0
"""Ends a demo that hangs; on a machine with much else to do, or no memory, a first batch takes minutes."""
console = Console(width=max(Console().width, 110))


class DemoError(Exception):
    """The demo did not do what it says."""


def main() -> int:
    """Returns the exit status: 0 when every answer agrees with what the client counted."""
    options = _options()
    output: Path = options.output.resolve()
    try:
        with emptied(output):
            return run(options, output)
    except FolderError as error:
        print(error, file=sys.stderr)
        return 1


def run(options: argparse.Namespace, output: Path) -> int:
    """Returns the exit status."""
    started = time.monotonic()
    try:
        with raised_signals(), ExitStack() as running:
            demo = Demo(output, options.rounds, running)
            demo.traffic()
            if not options.keep:
                demo.end()
            problems = report(demo.lake, demo.counted, output)
            for sentence in problems:
                console.print(f"[bold red]Wrong answer:[/] {escape(sentence)}")
            explore(demo.lake, output, time.monotonic() - started)
            if options.keep:
                keep(demo)
    except Signalled as stop:
        console.print("stopped: what ran has ended")
        return stop.status
    except Exception as error:
        console.print(f"[bold red]The demo failed:[/] {escape(str(error))}")
        for log in sorted(output.rglob("*.log")):
            console.print(f"--- end of {log.relative_to(output)}\n{log.read_text()[-1500:]}", markup=False)
        return 1
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.run", description="Runs the whole system on this machine."
    )
    parser.add_argument("--keep", action="store_true", help="go on until ctrl-C, with a page to look at")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "demo-output",
        help="a folder that is emptied first (demo-output)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=workload.ROUNDS,
        choices=range(workload.LEAST_ROUNDS, 1001),
        metavar="N",
        help=f"of {workload.planned_orders(1)} orders each, {workload.LEAST_ROUNDS} at least ({workload.ROUNDS})",
    )
    return parser.parse_args()


class Demo:
    """Gateway, reput and what the client counted; `running` ends what still runs."""

    def __init__(self, output: Path, rounds: int, running: ExitStack) -> None:
        self.lake = output / "lake"
        self.output = output
        self.counted = workload.Counted(rounds)
        # patient: nothing is measured, and the counts have to come out on a busy machine too
        self.gateway = Gateway(output, wrapper=keeping.APART, lakeWithNamesrv="true")
        self.reput: Reput
        self._running = running

    def traffic(self) -> None:
        """Starts gateway and reput, and returns when everything that clients sent is consumed and in the lake."""
        with Progress(
            TextColumn("{task.description:32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress:
            setup = progress.add_task("official client, gateway, reput", total=3)
            interpreter()
            progress.advance(setup)
            with signals_held():
                gateway = self._running.enter_context(self.gateway)
            progress.advance(setup)
            group = ["group", "create", "audit", "--retry-max", str(workload.AUDIT_RETRIES)]
            subprocess.run(
                command(*group, "--gateway", gateway.address), check=True, cwd=ROOT, capture_output=True
            )
            arguments = ("--brokers", gateway.address, "--trigger", "1s")
            with signals_held():
                self.reput = self._running.enter_context(
                    Reput(self.lake, self.output / "reput.log", *arguments)
                )
            first_batch(self.reput)
            progress.advance(setup)
            rounds = self.counted.rounds
            sending = progress.add_task("messages sent", total=workload.planned_messages(rounds))
            settling = progress.add_task("services that settled all orders", total=2)
            consume(gateway.address, self.counted, progress, sending, settling)
            catch_up(self.lake, self.counted, self.reput, progress)

    def end(self) -> None:
        """Ends both in order. Raises DemoError where one does not end as it should."""
        status = self.reput.stop()
        if status != 0:
            raise DemoError(f"the reput ended with status {status}")
        if self.gateway.terminate() != 0:
            raise DemoError("the gateway did not stop cleanly")


def keep(demo: Demo) -> None:
    """Lets all go on, with an order each second, until ctrl-C or SIGTERM. Raises DemoError where something ends by itself."""
    with keeping.stop_signals() as stopped, ExitStack() as looking:
        page = None
        try:
            log = demo.output / "console.log"
            page = looking.enter_context(keeping.Console(demo.gateway.address, demo.lake, log))
        except ProcessError as error:  # what it needs may not be installed
            console.print(f"[bold]No console:[/] {escape(str(error))}")
        still(demo, page)
        going_on = threading.Thread(target=workload.go_on, args=(demo.gateway.address, stopped))
        going_on.start()
        try:
            ended = keeping.until_stopped(demo.gateway, demo.reput, page, stopped)
        finally:
            stopped.set()
            going_on.join()
        if ended:
            raise DemoError(ended)
        console.print("ending the console, the reput and the gateway ...")
        looking.close()
        demo.end()
    console.print("all have ended")


def still(demo: Demo, page: keeping.Console | None) -> None:
    """Says how to look on."""
    console.print("\nGateway and reput go on, until ctrl-C.", style="bold")
    console.print(
        "An order is sent each second. Billing settles it; audit is away meanwhile, so that its lag grows."
    )
    name, address = shown_path(demo.lake), demo.gateway.address
    if page is not None:
        console.print(f"The console: [bold]{page.page}[/]", soft_wrap=True)
        keeping.look_on(page.page)
    else:
        index = demo.output / "index.html"
        console.print(f"The page: [bold]{index.as_uri()}[/]", soft_wrap=True)
        keeping.look_on(index.as_uri())
    console.print("In another terminal:")
    console.print(
        f"  .venv/bin/lakebroker lag --lake {name} --gateway {address} --watch 2s",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f'  .venv/bin/lakebroker sql --lake {name} --brokers {address} "SELECT * FROM consumer_lag"',
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"  .venv/bin/lakebroker trace order-42 --lake {name} --gateway {address}",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"  metrics for Prometheus: http://127.0.0.1:{demo.gateway.metrics_port}/metrics", markup=False
    )


def consume(address: str, counted: workload.Counted, progress: Progress, sending: Any, settling: Any) -> None:
    """Producer and two consumers side by side; raises what one of them raised."""
    errors: list[Exception] = []
    total = workload.planned_orders(counted.rounds)

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
    threads = [threading.Thread(target=guarded(work, task), daemon=True) for work, task in jobs]
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


def catch_up(lake: Path, counted: workload.Counted, reput: Reput, progress: Progress) -> None:
    """Waits until the lake answers as the client counted; each batch of the reput is a reason to ask again.

    Dead letters and statistics come to the log after the last acknowledgement, and from there to the lake: that the reput has
    read all of the log does not say that they are there. Raises DemoError when that takes too long.
    """
    task = progress.add_task("lake has everything", total=1)
    deadline = time.monotonic() + CATCH_UP_S
    asked = 0
    problems: list[str] = []
    with EmbeddedEngine.open(str(lake)) as engine:
        while time.monotonic() < deadline:
            if (batches := len(reput.batches())) > asked:
                asked = batches
                problems = wrong(answers(engine), counted)
                if not problems:
                    progress.advance(task)
                    return
            time.sleep(0.5)
    raise DemoError(f"the lake was still behind after {CATCH_UP_S:g} s: {'; '.join(problems)}")


def answers(engine: EmbeddedEngine) -> list[Answer]:
    """Asks every question."""
    found = []
    for question in QUESTIONS:
        table = engine.query(question.sql).read_all()
        found.append(Answer(question, table.column_names, table.to_pylist()))
    return found


def wrong(found: list[Answer], counted: workload.Counted) -> list[str]:
    """A sentence for each answer that differs from what the client counted."""
    return [problem for answer in found if (problem := answer.question.check(answer.rows, counted))]


def report(lake: Path, counted: workload.Counted, output: Path) -> list[str]:
    """Asks as `lakebroker sql` does, without a JVM; prints the answers, draws the chart; returns what is wrong."""
    with EmbeddedEngine.open(str(lake)) as engine:
        found = answers(engine)
        throughput = engine.query(chart.THROUGHPUT_SQL).read_all().to_pylist()
        lag = engine.query(chart.LAG_SQL).read_all().to_pylist()
    for answer in found:
        table = Table(*answer.columns, title=answer.question.title, title_justify="left")
        for row in answer.rows[:12]:
            table.add_row(*(shown(row[column]) for column in answer.columns))
        console.print(table)
    picture = output / "throughput-and-lag.png"
    chart.draw(throughput, lag, picture)
    chart.page(found, picture, chart.title(throughput, lag), output / "index.html")
    return wrong(found, counted)


def shown(value: Any) -> str:
    """A value as the tables show it."""
    if value is None:
        return ""
    if hasattr(value, "strftime"):
        return str(value.strftime("%H:%M:%S.%f"))[:-3]
    return str(value)


def explore(lake: Path, output: Path, seconds: float) -> None:
    """Says where things are and how to go on."""
    console.print(f"Done in {seconds:.0f} s. Where everything is:", style="bold")
    for name, what in (
        ("index.html", "the answers, with the chart: open it in a browser"),
        ("throughput-and-lag.png", "the chart"),
        ("lake", "the tables"),
        ("store", "the broker's commit log"),
        ("gateway.log", "what the gateway said; reput.log: what the reput said"),
    ):
        console.print(f"  {shown_path(output / name):40} {what}", markup=False, soft_wrap=True)
    console.print("\nGo on exploring:", style="bold")
    name = shown_path(lake)
    console.print(f"  .venv/bin/lakebroker sql --lake {name}", markup=False, soft_wrap=True)
    console.print(
        f'  .venv/bin/lakebroker sql --lake {name} --format csv "SELECT * FROM consumer_lag"',
        markup=False,
        soft_wrap=True,
    )
    console.print(
        "  .venv/bin/lakebroker gateway --store ./store    # a broker of your own",
        markup=False,
        soft_wrap=True,
    )


def shown_path(path: Path) -> str:
    """Below the checkout if it is there."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


if __name__ == "__main__":
    sys.exit(main())
