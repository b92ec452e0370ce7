"""Every command, query and piece of code in README.md and docs/ runs, page by page, as a reader copies it.

Which blocks there are and what is done with each is in `tests/support/documents/blocks.py`; what stands here in place of the addresses and
folders that are written, in `setting.py`. Brokers and the lake are one setting for all pages. Blocks go in the order of their
page: one may need what those before it made. The lake is filled by `lakebroker reput --once` in the session that is there
before; a reput that goes on in the text gets `--once` here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from broker_gateway.cli.main import app
from lakebroker_testing.gateway import ROOT
from lakebroker_testing.official_client import interpreter
from tests.support.documents.blocks import PAGES, Block, blocks_of, lines_of, statements_of, words_of
from tests.support.documents.setting import Outcome, Setting
from tests.support.waiting import LIMIT_S

pytestmark = pytest.mark.timeout(1800)
OF_THE_LAKE_OF_EXAMPLES = ("tables.md", "views.md")
"""Pages whose queries are asked of a lake that is always the same: `tests/support/lakes/example.py`."""
FILLS_THE_LAKE = "README.md:"
"""The first page, which has a reput of its own; where others run alone, one goes before."""
BLOCKS = [
    block
    for page in PAGES
    if page.name not in OF_THE_LAKE_OF_EXAMPLES
    for block in blocks_of(page)
    if block.runs
]


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    with ExitStack() as ending:
        yield Setting(tmp_path_factory.mktemp("documents"), ending)


def reput(setting: Setting, words: list[str]) -> None:
    """Runs it in the Spark session of the tests. A command that several pages have runs once."""
    words = [*words, *([] if "--once" in words else ["--once"])]
    if words in setting.reputs:
        return
    before = Path.cwd()
    os.chdir(setting.folder)
    try:
        status = app(words, standalone_mode=False)
        assert not status, f"{words} ended with status {status}; what it said is on standard error"
    finally:
        os.chdir(before)
    setting.reputs.append(words)


def run_line(setting: Setting, block: Block, line: str) -> None:
    told = setting.told(line)
    settings, words = settings_of(words_of(told))
    if words[0] in ("make", "pip"):
        return  # looked at by the unit tests
    if words[0] != "lakebroker" or {"|", "&&", ">"} & set(words):
        outcome = in_the_shell(setting, told)
    elif words[1] == "reput":
        reput(setting, words[1:])
        return
    elif server := setting.server_of(words[1:]):
        outcome = setting.serve(words[1:], server)
    else:
        outcome = setting.run(in_csv(words[1:]), **settings)
    assert outcome.status == 0, f"{block.place}: {line}\n{outcome}"
    if words[1:2] == ["sql"]:
        assert_rows(block, line, outcome)


def settings_of(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """`NAME=value` before a command, and the command."""
    named = list(takewhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    return dict(word.split("=", 1) for word in named), words[len(named) :]


def in_the_shell(setting: Setting, line: str) -> Outcome:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-ec", line],
        cwd=setting.folder,
        env=setting.environment | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def in_csv(words: list[str]) -> list[str]:
    return (
        [words[0], "--format", "csv", *words[1:]] if words[0] == "sql" and "--format" not in words else words
    )


def assert_rows(block: Block, statement: str, outcome: Outcome) -> None:
    """A head and a row, in csv; and the columns of the answer that is shown."""
    head, *rows = outcome.output.splitlines() or [""]
    assert rows or block.may_be_empty, f"{block.place}: {statement}: no rows"
    if block.answer:
        heads = next(row for row in block.answer.splitlines() if row.startswith("┃"))
        shown = [name.strip() for name in heads.strip("┃").split("┃")]
        assert head.split(",") == shown, block.place


def run_python(setting: Setting, spark: SparkSession, block: Block) -> None:
    code = setting.told(block.text)
    if "spark." in code:
        exec(compile(code, block.place, "exec"), {"spark": spark})
        return
    python = str(interpreter()) if "from rocketmq" in code else sys.executable
    path = "" if "from rocketmq" in code else str(ROOT)
    named = {"LAKEBROKER_LAKE": str(setting.lake), "LAKEBROKER_BROKERS": setting.a.address}  # of notebooks
    done = subprocess.run(
        [python, "-c", code],
        cwd=setting.folder,
        env={**os.environ, **named, "PYTHONPATH": path, "HOME": str(setting.folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, f"{block.place}\n{done.stdout}{done.stderr}"


def run_statement(setting: Setting, block: Block, statement: str) -> None:
    outcome = setting.run(["sql", "--lake", str(setting.lake), "--format", "csv", setting.told(statement)])
    assert outcome.status == 0, f"{block.place}: {statement}\n{outcome}"
    assert_rows(block, statement, outcome)


def steps_of(setting: Setting, spark: SparkSession, block: Block) -> list[Callable[[], None]]:
    if block.language == "sh":
        return [partial(run_line, setting, block, line) for line in lines_of(block)]
    if block.language == "sql":
        return [partial(run_statement, setting, block, statement) for statement in statements_of(block)]
    return [partial(run_python, setting, spark, block)]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_what_a_page_has_readers_run(block: Block, setting: Setting, spark: SparkSession) -> None:
    wrong: list[str] = []
    if not setting.reputs and not block.place.startswith(FILLS_THE_LAKE):
        reput(setting, ["reput", "--brokers", setting.a.address, "--lake", str(setting.lake)])
    for step in steps_of(setting, spark, block):
        try:
            step()
        except (Exception, SystemExit) as error:  # all that is wrong in a block is told at once
            wrong.append(f"{type(error).__name__}: {error}")
    assert not wrong, "\n\n".join(wrong)
