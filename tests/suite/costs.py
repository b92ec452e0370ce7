"""The cost of each test, and where a run of tests spends it: `-p tests.suite.costs --costs FILE`, then `python -m tests.suite.costs FILE`.

CPU seconds count the test's process and all processes below it, live and ended: a JVM, a gateway, a client. What a fixture of
a module or session costs is charged to the test that is the first to ask for it. Waited seconds are those in which none of these
processes had a processor: sleeps, polls, starts, and the processor's other users.
Linux alone: the figures come from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

_TICKS = os.sysconf("SC_CLK_TCK")
_SHORT_S = 0.05
"""Of a phase whose processes are not looked for."""
_PARENT, _TIMES = 1, slice(11, 15)
"""Fields of /proc/PID/stat behind the name: the parent, and utime, stime, cutime, cstime (proc_pid_stat(5))."""


def cpu_seconds(process: int) -> float:
    """What a process and all below it have used so far. A process whose parent ended before it is not found any more."""
    below: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", each, "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:  # ended meanwhile
            continue
        used[int(each)] = sum(map(int, fields[_TIMES]))
        below.setdefault(int(fields[_PARENT]), []).append(int(each))
    total, left = 0, [process]
    while left:
        each_id = left.pop()
        total += used.get(each_id, 0)
        left += below.get(each_id, ())
    return total / _TICKS


class Measure:
    """In each process that runs tests: gives the report of every phase its CPU seconds, which xdist carries to the controller.

    To look through /proc takes some milliseconds, and most phases take less: they get what this process alone used, and
    what processes below it used meanwhile goes to the next longer one.
    """

    def __init__(self) -> None:
        self._before, self._alone, self._told = cpu_seconds(os.getpid()), time.process_time(), 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        alone = time.process_time()
        spent, self._alone = alone - self._alone, alone
        if report.duration > _SHORT_S:
            now = cpu_seconds(os.getpid())
            spent, self._before, self._told = max(0.0, now - self._before - self._told), now, 0.0
        else:
            self._told += spent
        report.cpu_seconds = spent  # type: ignore[attr-defined]
        return report


class Collect:
    """In the process that the others report to: writes the costs by test id."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._found: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        each = self._found.setdefault(report.nodeid, {"seconds": 0.0, "cpu": 0.0})
        each["seconds"] += report.duration
        each["cpu"] += getattr(report, "cpu_seconds", 0.0)

    def pytest_sessionfinish(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        rounded = {
            name: {kind: round(value, 2) for kind, value in each.items()}
            for name, each in self._found.items()
        }
        self._file.write_text(json.dumps(rounded, indent=0, sort_keys=True) + "\n")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--costs", metavar="FILE", help="JSON file that takes each test's seconds and CPU seconds"
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--costs")
    if not file:
        return
    controls = not hasattr(config, "workerinput")
    if controls:
        config.pluginmanager.register(Collect(Path(file)), "lakebroker-costs")
    if not controls or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Measure(), "lakebroker-costs-measure")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one test or of several: how many, seconds by the clock, CPU seconds, seconds waited."""

    tests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    waited: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.tests + other.tests,
            self.seconds + other.seconds,
            self.cpu + other.cpu,
            self.waited + other.waited,
        )


def read(file: Path) -> dict[str, Cost]:
    """By test id."""
    found: Mapping[str, Mapping[str, float]] = json.loads(file.read_text())
    return {
        name: Cost(1, each["seconds"], each["cpu"], max(0.0, each["seconds"] - each["cpu"]))
        for name, each in found.items()
    }


def by_file(costs: Mapping[str, Cost]) -> dict[str, Cost]:
    return _grouped(costs, lambda name: name.partition("::")[0])


def by_folder(costs: Mapping[str, Cost], depth: int = 3) -> dict[str, Cost]:
    """By the first folders of a test's path: `tests/unit/store`."""
    return _grouped(costs, lambda name: "/".join(name.partition("::")[0].split("/")[:-1][:depth]))


def _grouped(costs: Mapping[str, Cost], key: Callable[[str], str]) -> dict[str, Cost]:
    groups: dict[str, Cost] = {}
    for name, each in costs.items():
        group = key(name)
        groups[group] = groups.get(group, Cost()) + each
    return groups


def table(title: str, costs: Mapping[str, Cost], most: int) -> Table:
    """The dearest first, by CPU seconds and seconds waited together: what a run saves without them."""
    printed = Table(title=title, title_justify="left", box=None)
    for heading in ("tests", "CPU s", "waited s", "seconds"):
        printed.add_column(heading, justify="right")
    printed.add_column(title.split()[0].lower(), overflow="fold")
    dearest = sorted(costs.items(), key=lambda item: item[1].cpu + item[1].waited, reverse=True)
    for name, each in dearest[:most]:
        printed.add_row(str(each.tests), *_figures(each), name)
    return printed


def _figures(cost: Cost) -> Iterator[str]:
    for value in (cost.cpu, cost.waited, cost.seconds):
        yield f"{value:.1f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.costs", description="Prints where a run of tests spent its time."
    )
    parser.add_argument("file", type=Path, help="what `--costs FILE` wrote")
    parser.add_argument("--most", type=int, default=100, help="tests and files to print (%(default)s)")
    asked = parser.parse_args(arguments)
    try:
        costs = read(asked.file)
    except (OSError, ValueError) as error:
        parser.error(
            f"{asked.file} has no costs, which `pytest -p tests.suite.costs --costs FILE` writes: {error}"
        )
    console = Console(width=None if sys.stdout.isatty() else 160)
    total = sum(costs.values(), Cost())
    console.print(table("Folder", by_folder(costs), asked.most))
    console.print(table("File", by_file(costs), asked.most))
    console.print(table("Test", costs, asked.most))
    console.print(
        f"{total.tests} tests: {total.cpu / 60:.1f} CPU minutes, {total.waited / 60:.1f} minutes waited, "
        f"{total.seconds / 60:.1f} minutes of all workers"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
