"""Blocks of the documents: each is run or says why not, and each command has the options that it is given."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main

from broker_gateway.cli.main import app
from tests.support.documents.blocks import (
    DONE,
    PAGES,
    ROOT,
    RUN,
    SHOWN,
    Block,
    blocks_of,
    command_of,
    extras,
    lines_of,
    statements_of,
    targets,
    words_of,
)

BLOCKS = [block for page in PAGES for block in blocks_of(page)]
_PIP_EXTRAS = re.compile(r"\.\[([a-z,]+)\]")


def written(tmp_path: Path, text: str) -> list[Block]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return blocks_of(page)


class NoSuchThingError(Exception):
    """A command, or an option, that there is not."""


@cache
def root() -> Any:
    """The command `lakebroker`."""
    return typer.main.get_command(app)


def options_of(words: list[str]) -> None:
    """Raises NoSuchThingError."""
    command, rest = root(), words[1:]
    while hasattr(command, "commands"):
        if not rest or rest[0].startswith("-"):
            return
        if rest[0] not in command.commands:
            raise NoSuchThingError(f"no command {rest[0]}")
        command, rest = command.commands[rest[0]], rest[1:]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--"}
    for word in rest:
        name = word.partition("=")[0]
        if (word.startswith("--") or re.fullmatch(r"-[a-zA-Z]", word)) and name not in known:
            raise NoSuchThingError(f"no option {name}")


def plain(line: str) -> list[str]:
    """The words of a line up to what the shell takes for itself."""
    words = words_of(line)
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    ends = [n for n, word in enumerate(words) if word in ("|", "&&", "<", ">", "&", ";")]
    return words[: ends[0]] if ends else words


def test_every_fence_names_its_language() -> None:
    unnamed = [block.place for block in BLOCKS if block.language not in (*RUN, *SHOWN)]
    assert not unnamed, f"name the language behind the fence: one of {', '.join((*RUN, *SHOWN))}"


def test_every_block_is_run_or_says_why_not() -> None:
    wrong = []
    for block in BLOCKS:
        by = re.fullmatch(r"run by (\S+)", block.mark)
        if by is not None:
            test = ROOT / by[1]
            if not test.is_file() or block.page.name not in test.read_text():
                wrong.append(f"{block.place}: {by[1]} is no test of {block.page.name}")
        elif block.language == "sh" and block.runs:
            wrong += [
                f"{block.place}: {line!r}: say before the fence who runs it, or `<!-- not run: REASON -->`"
                for line in lines_of(block)
                if command_of(line) not in DONE
            ]
    assert not wrong, "\n".join(wrong)


def test_every_command_has_the_options_that_it_is_given() -> None:
    wrong = []
    for block in BLOCKS:
        for line in lines_of(block) if block.language == "sh" else ():
            if command_of(line) == "lakebroker":
                try:
                    options_of(plain(line))
                except NoSuchThingError as error:
                    wrong.append(f"{block.place}: {line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_every_command_within_a_sentence_has_the_options_that_it_is_given() -> None:
    wrong = []
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for code in re.findall(r"(?<!`)`(lakebroker [^`]+)`(?!`)", text):
            try:
                options_of(plain(code.replace("…", "")))
            except (NoSuchThingError, ValueError) as error:
                wrong.append(f"{page.name}: {code}: {error}")
    assert not wrong, "\n".join(wrong)


def test_targets_and_extras_are_there() -> None:
    lines = [(block, line) for block in BLOCKS if block.language == "sh" for line in lines_of(block)]
    for block, line in lines:
        if command_of(line) == "make":
            named = [word for word in words_of(line)[1:] if re.fullmatch(r"[a-z-]+", word)]
            assert set(named) <= targets(), f"{block.place}: {line}"
    for page in PAGES:
        named = [extra for found in _PIP_EXTRAS.findall(page.read_text()) for extra in found.split(",")]
        assert set(named) <= extras(), page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lakebroker lag --lak ./lake", "--lak"),
        ("lakebroker lagg", "lagg"),
        ("lakebroker topic make orders", "make"),
        ("lakebroker gateway -x", "-x"),
    ],
)
def test_what_does_not_exist_is_found(line: str, message: str) -> None:
    with pytest.raises(NoSuchThingError, match=message):
        options_of(plain(line))


def test_what_exists_is_taken() -> None:
    options_of(plain("SPARK_CONF_DIR=./conf lakebroker sql --lake=./lake --format csv < questions.sql"))
    options_of(plain("lakebroker gateway -p"))


def test_blocks_are_found_with_what_stands_before_and_behind_them(tmp_path: Path) -> None:
    sql, answer, indented, marked = written(
        tmp_path,
        "```sql\nSELECT 1;\nSELECT 2\n```\n\n```text\n1\n```\n"
        "- one\n\n  ```sh\n  lakebroker lag \\\n      --lake x  # why\n  # a comment\n  ```\n"
        "<!-- not run: needs a cloud -->\n\n```sh\nother\n```\n",
    )
    assert (sql.line, sql.answer, statements_of(sql)) == (1, "1\n", ["SELECT 1", "SELECT 2"])
    assert (answer.language, answer.answer) == ("text", "")
    assert [words_of(line) for line in lines_of(indented)] == [["lakebroker", "lag", "--lake", "x"]]
    assert (marked.mark, marked.runs, indented.runs) == ("not run: needs a cloud", False, True)


def test_a_fence_that_is_not_closed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:2: the fence is not closed"):
        written(tmp_path, "text\n```sh\nls\n")


def test_files_of_the_repository_that_pages_name_are_there() -> None:
    """Those with a folder before them: other names may be short for one that the page told before."""
    top = "broker_gateway|store|structured_streaming|lakebroker_testing|tests|benchmarks|proto|resources|deploy|notebooks"
    page = ROOT / "docs" / "how-a-message-travels.md"
    named = re.findall(rf"`((?:{top})/[\w/.-]*)`", page.read_text())
    assert len(named) > 40
    assert [each for each in named if not (ROOT / each).exists()] == []


def test_words_of_logs_and_errors_that_the_page_on_recovery_quotes_are_the_programs() -> None:
    text = (ROOT / "docs" / "recovering.md").read_text()
    quoted = re.findall(r'"([^"]+)"', re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert len(quoted) > 20
    said = _texts_of_the_programs([_words(each) for each in quoted])
    assert [each for each in quoted if each != "double quotes" and each not in said] == []


def test_metrics_and_alerts_that_the_page_on_recovery_names_are_there() -> None:
    text = (ROOT / "docs" / "recovering.md").read_text()
    metrics = (ROOT / "docs" / "metrics.md").read_text()
    rules = (ROOT / "resources" / "prometheus" / "lakebroker.rules.yml").read_text()
    named = re.findall(r"`(lakebroker_[a-z_]+|rocketmq_[a-z_]+)`", text)
    alerts = re.findall(r"`(Lakebroker[A-Za-z]+)`", text)
    assert len(named) > 10
    assert len(alerts) > 5
    assert [each for each in named if f"`{each.removesuffix('_total')}`" not in metrics] == []
    assert [each for each in alerts if f"alert: {each}\n" not in rules] == []


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def _texts_of_the_programs(wanted: list[set[str]]) -> str:
    """Every text of files with all words of one of those that are wanted: parts that stand together as one, and what is put in left
    out."""
    texts = []
    for path in (
        each
        for folder in ("broker_gateway", "store", "structured_streaming")
        for each in (ROOT / folder).rglob("*.py")
    ):
        code = path.read_text()
        there = _words(code)
        for node in ast.walk(ast.parse(code)) if any(words <= there for words in wanted) else ():
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_few_commands_and_queries_are_left_out() -> None:
    """Marks are for what needs a cloud, root, other machines, or programs of others."""
    elsewhere = re.compile(r"workspace|root|machines|container engine|of the host|of a cluster")
    counted = {True: 0, False: 0}
    for block in BLOCKS:
        if block.language in ("sh", "sql") and not elsewhere.search(block.mark):
            counted[block.runs] += len(
                list(lines_of(block) if block.language == "sh" else statements_of(block))
            )
    assert counted[True] > 100
    assert counted[False] < counted[True] / 3
