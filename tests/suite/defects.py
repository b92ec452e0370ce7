"""Whether tests find defects: each of `defects.toml` is put into a copy of the tree, alone, and the tests run that should fail.

The copy is a clone of the tree's newest commit in a temporary folder; what is not committed is not in it. A test that fails
without the defect too has found nothing: it is left out, and the others of its folder run again. A folder that takes longer
than its limit has found nothing either.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.suite.rounds import ROOT, append

LIST = Path(__file__).with_suffix(".toml")
GENERATED = "lakebroker_pb"
"""Is made by an install, and not in a commit."""
_FAILED = re.compile(r"^(?:FAILED|ERROR) ([^\[\n]+?(?:\[.*?\])?)(?: - .*)?$", re.MULTILINE)
_MOST_BROKEN = 5
"""Tests that fail without the defect, in one folder."""
_EXAMPLES = """examples:
  python -m tests.suite.defects --check                                   does every defect still fit the tree?
  python -m tests.suite.defects --only journal-long-ids                   one defect
  python -m tests.suite.defects --record docs/evidence/defects.jsonl      all, a line of JSON for each
  python -m tests.suite.defects --tree ../older --limit 120 --json        against another clone and its tests
"""


class DefectsError(Exception):
    """Defects cannot be tried as asked; the text names the defect and says what to do."""


@dataclass(frozen=True, slots=True)
class Defect:
    """`old` stands once in `file`, and `new` in its place breaks a rule; `tests` are paths where that is found, the cheapest first."""

    id: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]

    def inserted(self, tree: Path) -> str:
        """The text of the file with the defect in it. Raises DefectsError where it does not fit the tree, or names tests that are not
        there."""
        try:
            text = (tree / self.file).read_text()
        except OSError as error:
            raise DefectsError(f"defect {self.id}: {self.file} cannot be read: {error.strerror}") from error
        count = text.count(self.old)
        if count != 1:
            where = "is not" if not count else f"stands {count} times"
            raise DefectsError(
                f"defect {self.id}: its old text {where} in {self.file}; bring it up to date in {LIST.name}"
            )
        for path in self.tests:
            if not (tree / path).exists():
                raise DefectsError(
                    f"defect {self.id}: there are no tests {path}; say in {LIST.name} where they are"
                )
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Tried:
    """Tests of one path, with the defect in place. `broken`: tests that fail without it, too."""

    path: str
    outcome: str
    seconds: float
    test: str = ""
    broken: tuple[str, ...] = ()


def read(path: Path = LIST) -> list[Defect]:
    """The defects of a file. Raises DefectsError."""
    names = {each.name for each in fields(Defect)}
    found: dict[str, Defect] = {}
    for number, given in enumerate(tomllib.loads(path.read_text())["defect"], 1):
        called = given.get("id", f"number {number}")
        if wrong := names ^ given.keys():
            raise DefectsError(f"defect {called}: {', '.join(sorted(wrong))}: missing, or none of its fields")
        if called in found:
            raise DefectsError(f"defect {called} is there twice; give one another id")
        if not given["tests"] or given["old"] == given["new"]:
            raise DefectsError(f"defect {called}: name tests, and a new text that differs from the old one")
        found[called] = Defect(**{**given, "tests": tuple(given["tests"])})
    return list(found.values())


def chosen(defects: Sequence[Defect], ids: Sequence[str]) -> list[Defect]:
    """Those with these ids, or all. Raises DefectsError."""
    if unknown := set(ids) - {each.id for each in defects}:
        raise DefectsError(f"there is no defect {', '.join(sorted(unknown))}; --check lists all")
    return [each for each in defects if not ids or each.id in ids]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 when every defect was found, 1 when one was not, 2 when they cannot be tried."""
    asked = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    try:
        defects = chosen(read(), asked.only)
        if asked.check:
            return _check(defects, asked.tree)
        with copy_of(asked.tree) as copy:
            for each in defects:
                each.inserted(copy.tree)
            rows = _try_all(defects, copy, asked)
    except DefectsError as error:
        print(error, file=sys.stderr)
        return 2
    if not asked.json:
        Console().print(table(rows))
        print(f"{sum(row['found'] for row in rows)} of {len(rows)} defects were found")
    return int(not all(row["found"] for row in rows))


class Copy:
    """A clone in a temporary folder, where defects are put and tests run by the interpreter of the tree that it is of."""

    def __init__(self, tree: Path, commit: str, python: Path) -> None:
        self.tree = tree
        self.commit = commit
        self._python = python

    @contextlib.contextmanager
    def holding(self, defect: Defect) -> Iterator[None]:
        """With the defect in its file. Python would take what it compiled of the other text where both are of one second and size."""
        path = self.tree / defect.file
        whole, text = defect.inserted(self.tree), path.read_text()
        try:
            _put(path, whole)
            yield
        finally:
            _put(path, text)

    def run(self, tests: Sequence[str], limit_s: float, left_out: Sequence[str] = ()) -> tuple[str, str]:
        """How tests end, `passed`, `failed`, `timed out`, or what else is wrong; and the first that failed."""
        command = [str(self._python), "-m", "pytest", "-x", "-q", "-rfE", "-p", "no:cacheprovider"]
        command += [f"--deselect={each}" for each in left_out]
        environment = {**os.environ, "PYTHONPATH": str(self.tree)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            [*command, *tests],
            cwd=self.tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return "timed out", ""
        finally:
            with contextlib.suppress(ProcessLookupError):  # what tests left, too
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return outcome(process.returncode, said)


def outcome(status: int, said: str) -> tuple[str, str]:
    """What pytest's status and output say. Where tests cannot be collected, a file of tests stands for one."""
    if status == 0:
        return "passed", ""
    failed = _FAILED.search(said)
    if status in (1, 2) and failed is not None:
        return "failed", failed[1]
    return f"pytest ended with status {status}: {said.strip()[-300:]}", ""


@contextlib.contextmanager
def copy_of(tree: Path) -> Iterator[Copy]:
    """A copy of the newest commit of a tree. Raises DefectsError."""
    commit = _git(tree, "rev-parse", "HEAD").strip()
    python = tree / ".venv" / "bin" / "python"
    folder = Path(tempfile.mkdtemp(prefix="lakebroker-defects-"))
    try:
        clone = folder / "tree"
        _git(tree, "clone", "--quiet", "--shared", "--no-checkout", str(tree.resolve()), str(clone))
        _git(clone, "checkout", "--quiet", "--detach", commit)
        if (tree / GENERATED).is_dir():
            shutil.copytree(tree / GENERATED, clone / GENERATED)
        yield Copy(clone, commit, python if python.exists() else Path(sys.executable))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _git(folder: Path, *arguments: str) -> str:
    found = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise DefectsError(f"{folder} cannot be copied: {found.stderr.strip()}; give a clone with --tree")
    return found.stdout


def attempt(defect: Defect, copy: Copy, limit_s: float) -> dict[str, Any]:
    """Runs the tests of a defect, path by path until one finds it; what becomes a line of the record."""
    tried: list[Tried] = []
    for path in defect.tests:
        tried.append(_try_path(defect, path, copy, limit_s))
        if tried[-1].outcome == "failed":
            break
    return {
        "id": defect.id,
        "found": tried[-1].outcome == "failed",
        "test": tried[-1].test,
        "seconds": round(sum(each.seconds for each in tried), 1),
        "tried": [asdict(each) for each in tried],
        "breaks": defect.breaks,
        "commit": copy.commit,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _try_path(defect: Defect, path: str, copy: Copy, limit_s: float) -> Tried:
    broken: list[str] = []
    began = time.monotonic()
    while True:
        with copy.holding(defect):
            ended, test = copy.run([path], limit_s, broken)
        if ended == "failed" and copy.run([test], limit_s)[0] != "passed":
            broken.append(test)
            if len(broken) < _MOST_BROKEN:
                continue
            ended, test = "too many tests fail without the defect", ""
        return Tried(path, ended, round(time.monotonic() - began, 1), test, tuple(broken))


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """What became of each defect."""
    shown = Table()
    for head in ("defect", "found by", "seconds", "rule that it breaks"):
        shown.add_column(head, overflow="fold", no_wrap=head == "seconds")
    for row in rows:
        others = [
            f"{each['path']}: {each['outcome']}" for each in row["tried"] if each["outcome"] != "passed"
        ]
        by = row["test"] if row["found"] else "; ".join(["[red]not found[/red]", *others])
        shown.add_row(row["id"], by, f"{row['seconds']:,.0f}", row["breaks"])
    return shown


def _try_all(defects: Sequence[Defect], copy: Copy, asked: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    columns = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(defects))
        for each in defects:
            progress.update(task, description=f"{each.id} in {each.tests[0]}")
            row = attempt(each, copy, asked.limit)
            rows.append(row)
            if asked.record is not None:
                append(asked.record, row)
            if asked.json:
                print(json.dumps(row), flush=True)
            progress.advance(task)
    return rows


def _check(defects: Sequence[Defect], tree: Path) -> int:
    """Says of every defect whether it fits the tree as it is, committed or not."""
    wrong = 0
    for each in defects:
        try:
            each.inserted(tree)
        except DefectsError as error:
            wrong = 2
            print(error, file=sys.stderr)
        else:
            print(f"{each.id}: {each.breaks}")
    return wrong


def _put(path: Path, text: str) -> None:
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink(missing_ok=True)
    path.write_text(text)


def _end(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m tests.suite.defects",
        description="Puts defects into a copy of the tree, one at a time, and says which tests find them.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="this one; may be repeated")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a clone whose newest commit is tried")
    parser.add_argument("--record", type=Path, help="file that gets a line of JSON for each defect")
    parser.add_argument("--limit", type=float, default=600, help="seconds that tests of one path may take")
    parser.add_argument("--check", action="store_true", help="only look whether the defects fit the tree")
    parser.add_argument("--json", action="store_true", help="print lines of JSON in place of a table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
