"""Which parts of `make evidence` are older than the code they cover: `python -m tests.suite.evidence_due`.

A part is a file of tests that has a long form (it imports `tests.suite.evidence`). It covers the packages that it imports, also
by way of `tests/support` and `lakebroker_testing`; a part that starts `lakebroker` as a process covers all of the product. It is
due when no result of it is recorded, when its last run failed or was of a tree with changes, or when commits since that run
changed the file or covered code.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.suite.rounds import EVIDENCE, ROOT

RECORD = ROOT / EVIDENCE / "faults.json"
_PRODUCT = ("broker_gateway", "store", "structured_streaming")
_SHARED = ("tests", "lakebroker_testing")
_PROCESSES = ("lakebroker_testing.gateway", "lakebroker_testing.prestarted")
_MARK = "tests.suite.evidence"


@dataclass(frozen=True, slots=True)
class Part:
    """A file of long tests: what it covers, the commit of its oldest result, and the commits that changed covered code since."""

    path: str
    covers: tuple[str, ...]
    commit: str
    failed: int
    changes: int

    @property
    def reason(self) -> str:
        """Why the part is due; empty where it is not."""
        if not self.commit:
            return "never recorded"
        if self.failed:
            return f"{self.failed} failed"
        if self.commit.endswith("-dirty"):
            return "ran on a changed tree"
        return f"{self.changes} commits since" if self.changes else ""


def parts(root: Path = ROOT) -> list[str]:
    """The files of tests that have a long form."""
    found = sorted((root / "tests").rglob("test_*.py"))
    return [str(path.relative_to(root)) for path in found if _MARK in _imports(path)]


def covered(path: str, root: Path = ROOT) -> tuple[str, ...]:
    """Folders and modules of the product that a file of tests depends on, as paths that git takes."""
    seen: set[Path] = set()
    left = [root / path]
    found: set[str] = set()
    while left:
        file = left.pop()
        if file in seen:
            continue
        seen.add(file)
        for name in _imports(file):
            package = name.partition(".")[0]
            if name in _PROCESSES:
                found |= {*_PRODUCT}
            elif package in _PRODUCT and name != package:
                found.add("/".join(name.split(".")[:2]))
            elif package in _SHARED:
                left += _files(name, root)
    whole = {name for name in found if "/" not in name}
    folders = {_existing(name, root) for name in found if name.partition("/")[0] not in whole}
    return tuple(sorted(whole | folders))


def look(record: Mapping[str, Mapping[str, Any]], root: Path = ROOT) -> list[Part]:
    """Every part, the one with the most changes first, behind those never recorded."""
    found = []
    for path in parts(root):
        results = [each for name, each in record.items() if name.partition("::")[0] == path]
        commits = {str(each["commit"]) for each in results if "commit" in each}
        covers = covered(path, root)
        changes = {commit: _changes(commit, (path, *covers), root) for commit in commits}
        oldest = max(changes, key=lambda commit: changes[commit], default="")
        failed = sum(each["outcome"] == "failed" for each in results)
        found.append(Part(path, covers, oldest, failed, changes.get(oldest, 0)))
    return sorted(found, key=lambda part: (bool(part.commit), -part.changes, part.path))


@functools.cache
def _imports(file: Path) -> frozenset[str]:
    return frozenset(_imported(file))


def _imported(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def _files(name: str, root: Path) -> list[Path]:
    file = root.joinpath(*name.split(".")).with_suffix(".py")
    return [file] if file.exists() else []


def _existing(name: str, root: Path) -> str:
    """Of `package/name` the folder or module, or the package where `name` is of its `__init__.py`."""
    if (root / name).is_dir():
        return name
    return f"{name}.py" if (root / f"{name}.py").exists() else name.partition("/")[0]


def _changes(commit: str, paths: Sequence[str], root: Path) -> int:
    """Commits since then that changed one of the paths; one at least where the commit is unknown here."""
    command = ["git", "-C", str(root), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suite.evidence_due",
        description="Prints which parts of `make evidence` are older than the code they cover.",
    )
    parser.add_argument("--record", type=Path, default=RECORD, help=f"results ({EVIDENCE}/faults.json)")
    parser.add_argument("--json", action="store_true", help="print a JSON list of all parts")
    asked = parser.parse_args(arguments)
    found = look(json.loads(asked.record.read_text()))
    if asked.json:
        print(json.dumps([asdict(part) | {"due": part.reason} for part in found], indent=1))
        return 0
    table = Table("part", "last run", "due", box=None)
    for part in found:
        table.add_row(part.path, part.commit[:12] or "-", part.reason or "no")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    due = sum(bool(part.reason) for part in found)
    console.print(
        f"{due} of {len(found)} parts are due; run one with: make evidence EVIDENCE={found[0].path}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
