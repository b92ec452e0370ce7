"""What the documents have for their readers to copy: fenced blocks, by page and line, and the statements in them.

A fence names its language. Before it may stand a comment of its own line that says who runs the block, or why nobody does:

    <!-- not run: needs a Databricks workspace -->
    <!-- run by tests/integration/gateway/test_extending.py -->
    <!-- may have no rows: nothing is damaged here -->

| language | what the tests do with it |
|---|---|
| `sh` | each line runs, in order (`DONE` says how) |
| `sql` | each statement runs, and answers rows; a block `text` right behind it is its answer |
| `python` | it runs |
| `text`, `json`, `toml`, `properties`, … (`SHOWN`) | it is shown, and nothing runs |
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
"""Every document. Those of `docs/evidence` are records of runs."""
RUN = ("sh", "sql", "python")
SHOWN = ("text", "json", "toml", "properties", "yaml", "ini", "xml", "java", "dockerfile", "console", "nginx")
"""Languages of blocks that are looked at."""
DONE = {
    "lakebroker": "runs",
    "openssl": "runs",
    "chmod": "runs",
    "mkdir": "runs",
    "curl": "runs",
    "export": "runs",
    "make": "its target is in the Makefile",
    "pip": "its extras are in pyproject.toml",
}
"""What is done with a line of a block `sh`, by its first word. A block with any other has to say who runs it."""
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>\S*)")
_MARK = re.compile(r"^ *<!-- (?P<mark>(?:not run: .|run by |may have no rows: .).*) -->$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    page: Path
    line: int
    """Of its fence, from 1."""
    language: str
    text: str
    mark: str
    """The comment before it, without its brackets; empty where there is none."""
    answer: str = ""
    """The block `text` right behind it."""

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether it is run where all are."""
        return self.language in RUN and (not self.mark or self.may_be_empty)

    @property
    def may_be_empty(self) -> bool:
        """Whether its queries need not have rows."""
        return self.mark.startswith("may have no rows")


def blocks_of(page: Path) -> list[Block]:
    """In order. Raises ValueError for a fence that is not closed."""
    found: list[Block] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        if (opened := _FENCE.match(lines[at])) is None:
            at += 1
            continue
        first = at + 1
        closing = next((n for n in range(first, len(lines)) if lines[n].strip() == opened["fence"]), None)
        if closing is None:
            raise ValueError(f"{page}:{first}: the fence is not closed")
        indent = len(opened["indent"])
        text = "\n".join(line[indent:] for line in lines[first:closing]) + "\n"
        mark = _MARK.match(lines[_text_before(lines, at)]) if at else None
        found.append(Block(page, first, opened["language"], text, mark["mark"] if mark else ""))
        at = closing + 1
    return [_answered(block, (*found, None)[n + 1], lines) for n, block in enumerate(found)]


def _text_before(lines: list[str], at: int) -> int:
    return next((n for n in range(at - 1, -1, -1) if lines[n].strip()), 0)


def _answered(block: Block, after: Block | None, lines: list[str]) -> Block:
    if block.language not in RUN or after is None or after.language != "text":
        return block
    end = block.line + block.text.count("\n") + 1
    between = lines[end : after.line - 1]
    if any(line.strip() for line in between):
        return block
    return Block(block.page, block.line, block.language, block.text, block.mark, after.text)


def lines_of(block: Block) -> Iterator[str]:
    """Lines of a block `sh`: those that a backslash joins as one, without those that are a comment or empty."""
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            yield line.strip()


def words_of(line: str) -> list[str]:
    """Without a comment at its end. Settings before a command (`NAME=value lakebroker …`) are words as well."""
    return shlex.split(line, comments=True)


def command_of(line: str) -> str:
    """The first word that is no setting."""
    return next((word for word in words_of(line) if not re.match(r"[A-Z_]+=", word)), "")


def statements_of(block: Block) -> list[str]:
    """Statements of a block `sql`; a semicolon divides them."""
    return [each.strip() for each in block.text.split(";") if each.strip()]


def extras() -> set[str]:
    """That pyproject.toml has."""
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])


def targets() -> set[str]:
    """That the Makefile has."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
