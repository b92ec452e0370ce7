"""Rounds of tests beside busy processes; a record of them names their commit.

A test that is right only on a quiet machine fails here sooner or later. The busy processes share the session of the tests
(where the kernel groups processes by session, those of another would weigh less) and end with this one, however it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.suite import patience

ROOT = Path(__file__).resolve().parents[2]
EVIDENCE = "docs/evidence"
_HANGS_S = 1000
"""Of pytest's process on a quiet machine, as in pyproject.toml."""
_ENDING = (signal.SIGTERM, signal.SIGINT)
_BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(1_000_000))"
_EXAMPLES = """examples:
  python -m tests.suite.rounds --rounds 20 --allow-dirty -- tests/unit/store/log/test_flush.py -k fails
  python -m tests.suite.rounds --rounds 6 --at-once 3 --workers 3  what make test runs, three times at once, beside 8 processes
  python -m tests.suite.rounds --busy 0 --workers 3 --record docs/evidence/rounds.jsonl -- tests/fault
"""


class RoundsError(Exception):
    """The rounds cannot be run as asked."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every round passed, 1 when one failed, 2 when none was begun."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    # ignored where a shell started this in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        commit = commit_of(ROOT, allow_dirty=asked.allow_dirty)
    except RoundsError as error:
        print(error, file=sys.stderr)
        return 2
    outputs = Path(tempfile.mkdtemp(prefix="lakebroker-rounds-"))
    failed = False
    print(f"each failure is written to a file in {outputs} as soon as it comes", file=sys.stderr)
    if not asked.json:
        print(heading(), flush=True)
    with busy_processes(asked.busy):
        for first in range(1, asked.rounds + 1, asked.at_once):
            numbers = range(first, min(first + asked.at_once, asked.rounds + 1))
            files = [outputs / f"round-{number}.txt" for number in numbers]
            rounds = run_at_once(asked, commit, files)
            for number, file, found in zip(numbers, files, rounds, strict=True):
                if asked.record is not None:
                    append(asked.record, found)
                print(json.dumps(found) if asked.json else row(number, found), flush=True)
                failed |= is_failed(found)
                if found["status"] not in (0, 1):  # it has no failure to show
                    print(
                        "".join(file.read_text(errors="replace").splitlines(keepends=True)[-3:]),
                        file=sys.stderr,
                    )
    if failed:
        print(f"all that pytest printed in rounds that failed is in {outputs}", file=sys.stderr)
    else:
        outputs.rmdir()
    return int(failed)


def commit_of(tree: Path, *, allow_dirty: bool) -> str:
    """The commit's hash, with `-dirty` where the tree has changes and they are allowed. Raises RoundsError.

    What changed under docs/evidence does not count: the rounds themselves are written there.
    """
    commit = _git(tree, "rev-parse", "HEAD").strip()
    changed = _git(tree, "status", "--porcelain", "--", ".", f":(exclude){EVIDENCE}").splitlines()
    if not changed:
        return commit
    if not allow_dirty:
        raise RoundsError(
            f"{len(changed)} files differ from commit {commit[:12]}, such as {changed[0][3:]}: "
            "commit them, or run the changed tree with --allow-dirty"
        )
    return f"{commit}-dirty"


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[list[int]]:
    """So many processes that each keep a processor busy; their ids. They end with the block, or with this process."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        while len(running) < count:
            running.append(subprocess.Popen([sys.executable, "-S", "-c", _BUSY, str(os.getpid())]))
        yield [each.pid for each in running]
    finally:
        for each in running:
            each.kill()
        for each in running:
            each.wait()


def run_at_once(asked: argparse.Namespace, commit: str, outputs: Sequence[Path]) -> list[dict[str, Any]]:
    """Runs the tests once for each file of output, all at the same time; what becomes lines of the record.

    The output of a round that failed is kept. `runnable` is the mean number of threads that ran or waited for a processor:
    rounds are busy processes beside each other, too.
    """
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    began = time.monotonic()
    environment = os.environ | {patience.VARIABLE: str(factor_of(asked))}
    ended: dict[Path, dict[str, Any]] = {}
    threads = []
    with contextlib.ExitStack() as stack:
        processes = {
            output: stack.enter_context(_process(pytest_command(asked, output), output, environment))
            for output in outputs
        }
        while len(ended) < len(processes):
            time.sleep(1)
            threads.append(patience.runnable())
            for output, process in processes.items():
                if output not in ended and (status := process.poll()) is not None:
                    ended[output] = {
                        "seconds": round(time.monotonic() - began),
                        "runnable": round(statistics.fmean(threads), 1),
                        "status": status,
                    }
    lines = []
    for output in outputs:
        lines.append(
            {
                "commit": commit,
                "date": date,
                "paths": asked.paths,
                "busy": asked.busy,
                "at_once": len(outputs),
                "workers": asked.workers,
                **ended[output],
                **_counted(_outcomes(output)),
            }
        )
        if not is_failed(lines[-1]):
            output.unlink()
    return lines


def _outcomes(output: Path) -> Path:
    return output.with_suffix(".json")


def _counted(outcomes: Path) -> dict[str, Any]:
    """Of a file that pytest has written, which goes; of none, where it ended before."""
    results = json.loads(outcomes.read_text()) if outcomes.exists() else {}
    outcomes.unlink(missing_ok=True)
    return counted(results)


def pytest_command(asked: argparse.Namespace, output: Path) -> list[str]:
    """A test may take as much longer as there are busy processes and other rounds beside it; one that hangs is ended after that."""
    command = [sys.executable, "-m", "pytest"]
    command += ["-p", "tests.suite.outcomes", "--outcomes", str(_outcomes(output))]
    command += ["-p", "tests.suite.failures", "--failures", str(output.with_suffix(".failures.txt"))]
    limits = ["-p", "tests.suite.patience", "-o", f"faulthandler_timeout={_HANGS_S * factor_of(asked)}"]
    workers = (
        ["-n", str(asked.workers), "--dist", "loadfile", "--no-loadscope-reorder"] if asked.workers else []
    )
    return [*command, *limits, *workers, *asked.paths]


def factor_of(asked: argparse.Namespace) -> int:
    return int(asked.at_once + asked.busy)


def counted(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Numbers of tests by outcome, and the ids of those that failed."""
    outcomes = [each["outcome"] for each in results.values()]
    return {
        **{name: outcomes.count(name) for name in ("passed", "failed", "skipped")},
        "failures": sorted(name for name, each in results.items() if each["outcome"] == "failed"),
    }


def is_failed(found: Mapping[str, Any]) -> bool:
    """A pytest that ended early, or found no test, has no failures but a status."""
    return bool(found["status"] or found["failed"])


def append(record: Path, found: Mapping[str, Any]) -> None:
    """One line of JSON."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a") as file:
        file.write(json.dumps(found) + "\n")


def heading() -> str:
    return f"{'round':>5} {'seconds':>8} {'passed':>7} {'failed':>7} {'skipped':>8}"


def row(number: int, found: Mapping[str, Any]) -> str:
    """A line of the table; the ids of failed tests stand below it."""
    line = (
        f"{number:>5} {found['seconds']:>8} {found['passed']:>7} {found['failed']:>7} {found['skipped']:>8}"
    )
    if found["status"] not in (0, 1):
        line += f"  pytest ended with status {found['status']}"
    return "\n      ".join([line, *found["failures"]])


@contextlib.contextmanager
def _process(
    command: Sequence[str], output: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """What it prints goes to the file. Interrupted when the block is left early, so that it ends what it started."""
    process = None
    try:
        # a signal between fork and assignment would leave an orphan
        with output.open("wb") as out, _signals_wait() as resume:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=environment,
                preexec_fn=resume,
            )
        yield process
    finally:
        if process is not None:
            try:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(60)
            finally:  # another signal does not wait
                process.kill()
                process.wait()


@contextlib.contextmanager
def _signals_wait() -> Iterator[Callable[[], object]]:
    """Signals that end this process come after the block; gives what a child calls, which has none to wait for."""
    resume = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, _ENDING)
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield resume
    finally:
        resume()


def _git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(tree), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RoundsError(f"{tree} has no commit to record: {done.stderr.strip()}")
    return done.stdout


def _end(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)


def _count(text: str, least: int = 0) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of {least} or more")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.rounds",
        description="Runs tests several times beside busy processes.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    positive = functools.partial(_count, least=1)
    parser.add_argument("--rounds", type=positive, default=10, help="how often (%(default)s)")
    parser.add_argument(
        "--busy", type=_count, default=8, help="busy processes beside the tests (%(default)s)"
    )
    parser.add_argument(
        "--workers", type=_count, default=0, help="pytest's workers; 0: one process (%(default)s)"
    )
    parser.add_argument(
        "--at-once",
        type=positive,
        default=1,
        help="rounds that run at the same time (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the lines of the record, no table")
    parser.add_argument("--allow-dirty", action="store_true", help="run a tree that differs from its commit")
    parser.add_argument(
        "--record",
        type=Path,
        help=f"add a line of JSON for each round to this file ({EVIDENCE}/rounds.jsonl)",
    )
    parser.add_argument(
        "paths",
        nargs="*",
        default=["tests/fault", "tests/integration", "tests/unit"],
        help="after --: tests and options for pytest (what make test runs)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
