"""Each extra brings what its machine imports, and nothing else; a command that lacks one says how to install it."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from structured_streaming import extras as table
from structured_streaming.extras import Needs
from tests.support.packages.extras import SPARK, asked_for, bare_python, brought, distributions, requirements
from tests.support.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("broker_gateway", "store", "structured_streaming")
OWN = {*PRODUCT, "lakebroker_pb", "lakebroker_testing"}
OF_THE_BROKER_LESS = ("broker_gateway/cli",)
OF_THE_CLUSTER_LESS = (
    "structured_streaming/embedded",
    "structured_streaming/flight",
    "structured_streaming/iceberg",
    "structured_streaming/notebooks",
)
PLACES = {
    "store": ((), ()),
    "broker_gateway": (("broker",), OF_THE_BROKER_LESS),
    "broker_gateway/cli": (("broker", "sql", "cluster", "spark"), ("broker_gateway/cli/console",)),
    "broker_gateway/cli/console": (("console",), ()),
    "structured_streaming": (("cluster", "spark"), OF_THE_CLUSTER_LESS),
    "structured_streaming/embedded": (("sql",), ()),
    "structured_streaming/flight": (("sql",), ()),
    "structured_streaming/iceberg": (("iceberg",), ()),
    "structured_streaming/notebooks": (("notebooks",), ()),
}
"""Folder, the extras whose packages it may import, and the folders in it that are named for themselves."""
NOT_IMPORTED = {"pandas"}  # pyspark's Arrow conversions want it
NEEDS = {name: each for name, each in vars(table).items() if isinstance(each, Needs)}


def files(folder: str, less: tuple[str, ...]) -> Iterator[Path]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not path.relative_to(ROOT).as_posix().startswith(tuple(f"{each}/" for each in less)):
            yield path


_OF_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)


@functools.cache
def imported(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and first name of what a file imports when it runs, anywhere in it; no type-checking imports."""
    found: list[tuple[int, str]] = []
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"), str(path))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found += ((node.lineno, each.name.partition(".")[0]) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append((node.lineno, node.module.partition(".")[0]))
        waiting += (each for each in ast.iter_child_nodes(node) if isinstance(each, _OF_STATEMENTS))
    return tuple(found)


def of_others(path: Path) -> Iterator[tuple[int, str, set[str]]]:
    """Line, name and distributions of what a file imports of other projects."""
    for line, name in imported(path):
        if name not in OWN and name not in sys.stdlib_module_names:
            yield line, name, distributions().get(name, set())


@pytest.mark.parametrize("place", PLACES)
def test_what_a_folder_imports_is_asked_for_by_the_extras_of_its_machines(place: str) -> None:
    with_extras, less = PLACES[place]
    asked = asked_for(*with_extras) | set(SPARK)
    asked |= {"pydantic-core"} if "pydantic" in asked else set()  # its types of errors
    asked |= {"llvmlite"} if "numba" in asked else set()  # which has its compiler
    found = {
        f"{path.relative_to(ROOT)}:{line} imports {name}, of {', '.join(of) or 'nothing'}"
        for path in files(place, less)
        for line, name, of in of_others(path)
        if not of & asked
    }
    assert not found, f"the base package and {', '.join(with_extras) or 'no extra'} do not ask for these"


def test_only_what_has_to_do_with_spark_imports_it() -> None:
    """`PLACES` allows every folder to name it, since its extra is one of some."""
    found = {
        path.relative_to(ROOT).parts[0]
        for part in PRODUCT
        for path in files(part, ())
        for _, name, _ in of_others(path)
        if name in SPARK
    }
    assert found == {"structured_streaming"}


@pytest.mark.parametrize("extra", ["", "broker", "cluster", "sql", "spark", "iceberg", "console"])
def test_nothing_is_brought_that_nobody_imports(extra: str) -> None:
    used = {
        each for part in PRODUCT for path in files(part, ()) for _, _, of in of_others(path) for each in of
    }
    used |= {name.replace("_", "-") for each in NEEDS.values() for name in each.packages}
    assert asked_for(*([extra] if extra else [])) - used <= NOT_IMPORTED


@pytest.mark.parametrize("name", NEEDS)
def test_the_extra_that_is_named_brings_what_is_missing(name: str) -> None:
    needs = NEEDS[name]
    asked = asked_for(needs.extra)
    assert needs.packages
    assert [each for each in needs.packages if not distributions()[each] & asked] == []


@pytest.mark.parametrize(
    ("extra", "never"),
    [
        ("broker", {"pyspark", "py4j", "delta-spark", "duckdb", "pandas", "pyiceberg", "fastavro"}),
        ("cluster", {*SPARK, "delta-spark", "duckdb", "uvloop", "httpunk", "lark", "cryptography"}),
        ("sql", {*SPARK, "delta-spark", "pandas", "uvloop", "httpunk", "prometheus-client"}),
        ("spark", {"duckdb", "uvloop", "httpunk", "lark", "cryptography"}),
    ],
)
def test_what_another_machine_is_for_does_not_come(extra: str, never: set[str]) -> None:
    assert never & brought(extra) == set()
    assert never & brought("broker", "cluster", "sql", "spark", "iceberg") == never


IMPORT_ALL = """
import importlib, pkgutil
for place in {places!r}:
    package = importlib.import_module(place)
    for found in pkgutil.walk_packages(package.__path__, place + "."):
        if not found.name.startswith({less!r}):
            importlib.import_module(found.name)
"""
OF_SQL = (
    "structured_streaming.embedded",
    "structured_streaming.flight",
    "structured_streaming.maintenance",
    "structured_streaming.storage",
    "broker_gateway.cli",
)
OF_THE_CONSOLE = "broker_gateway.cli.console."


@pytest.mark.parametrize(
    ("extras", "besides", "places", "less"),
    [
        (
            (),
            (),
            ("store", "broker_gateway.cli", "lakebroker_pb"),
            ("broker_gateway.cli.schema_file", OF_THE_CONSOLE),
        ),
        (("broker",), (), ("broker_gateway", "store"), ("broker_gateway.cli.schema_file.", OF_THE_CONSOLE)),
        (("sql",), (), OF_SQL, (OF_THE_CONSOLE,)),
        (("console",), (), ("broker_gateway.cli.console",), ("none",)),
        (
            ("cluster",),
            SPARK,
            ("structured_streaming", "broker_gateway.cli", "store"),
            (OF_THE_CONSOLE, *(each.replace("/", ".") for each in OF_THE_CLUSTER_LESS)),
        ),
        (("iceberg",), (), ("structured_streaming.iceberg", "structured_streaming.maintenance"), ("none",)),
    ],
)
def test_a_machine_imports_all_of_its_part_with_its_extra_alone(
    extras: tuple[str, ...], besides: tuple[str, ...], places: tuple[str, ...], less: tuple[str, ...]
) -> None:
    run(bare_python(IMPORT_ALL.format(places=places, less=less), *extras, besides=besides))


COMMANDS = {
    "gateway --store {store}": ("gateway needs uvloop", "broker"),
    "gateway -p": ("gateway needs uvloop", "broker"),
    "namesrv": ("namesrv needs uvloop", "broker"),
    "sidecar --store {store}": ("sidecar needs uvloop", "broker"),
    "store rebuild {store}": ("store rebuild needs uvloop", "broker"),
    "store import {store}": ("store import needs uvloop", "broker"),
    "reput --store {store} --lake {lake}": ("reput needs pyspark", "spark"),
    "init --lake {lake}": ("init needs deltalake", "sql"),
    "init --lake main.lake": ("init of main.lake, which is a schema of a catalog, needs pyspark", "spark"),
    "sql --lake {lake} SELECT": ("sql needs duckdb", "sql"),
    "sql --lake {lake} --engine spark SELECT": ("sql --engine spark needs pyspark", "spark"),
    "sql --lake {lake} --write SELECT": ("sql: --write changes tables, which needs pyspark", "spark"),
    "console": ("console needs nicegui", "console"),
    "serve --lake {lake}": ("serve needs duckdb", "sql"),
    "lag --lake {lake}": ("--lake {lake} needs duckdb", "sql"),
    "message key --lake {lake}": ("--lake {lake} needs duckdb", "sql"),
    "trace key --lake {lake}": ("--lake {lake} needs duckdb", "sql"),
    "dlq list --lake {lake}": ("--lake {lake} needs duckdb", "sql"),
    "maintain --lake {lake}": ("maintain needs deltalake", "sql"),
    "erase --id 1 --lake {lake}": ("erase needs deltalake", "sql"),
    "lake check --lake {lake}": ("lake check needs deltalake", "sql"),
    "lake copy --lake {lake} --to {lake}2": ("lake copy needs deltalake", "sql"),
    "lake retention *=1d --lake {lake}": ("lake retention needs deltalake", "sql"),
    "lake retire b --lake {lake}": ("lake retire needs deltalake", "sql"),
    "lake unretire b --lake {lake}": ("lake unretire needs deltalake", "sql"),
    "lake brokers --lake {lake}": ("lake brokers needs deltalake", "sql"),
    "typed add t --schema s.json --lake {lake}": ("typed add needs deltalake", "sql"),
    "typed fill t --lake {lake}": ("typed fill needs deltalake", "sql"),
    "typed list --lake {lake}": ("typed list needs deltalake", "sql"),
    "typed check --schema s.json --lake {lake}": ("typed check needs deltalake", "sql"),
    "typed remove t --lake {lake}": ("typed remove needs deltalake", "sql"),
}
RUN_ALL = """
import json
from typer.testing import CliRunner
from broker_gateway.cli.main import app
found = []
for command in {commands!r}:
    done = CliRunner(env={{"COLUMNS": "200"}}).invoke(app, command)
    found.append((done.exit_code, done.stdout, done.stderr, repr(done.exception)))
print(json.dumps(found))
"""


Answer = tuple[int, str, str, str]
"""Status, standard output, standard error and exception of a command."""


class Bare(NamedTuple):
    """What the base package alone answers: `COMMANDS` in a folder, and `asking` for the version and for help."""

    folder: Path
    commands: list[Answer]
    asking: dict[tuple[str, ...], Answer]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Bare:
    """By one process for all: most of its work is to import the command."""
    from broker_gateway.cli.main import app

    folder = tmp_path_factory.mktemp("bare")
    (folder / "store" / "commitlog").mkdir(parents=True)
    commands = [command.format(store=folder / "store", lake=folder / "lake").split() for command in COMMANDS]
    asking = [("--version",), ("--help",)]
    asking += [(*path, "--help") for path in paths(typer.main.get_command(app))]
    answers = of_commands([*commands, *map(list, asking)])
    count = len(commands)
    return Bare(folder, answers[:count], dict(zip(asking, answers[count:], strict=True)))


def test_a_command_whose_extra_is_missing_says_which(bare: Bare) -> None:
    at = {"store": bare.folder / "store", "lake": bare.folder / "lake"}
    for (command, (what, extra)), (status, out, err, _) in zip(COMMANDS.items(), bare.commands, strict=True):
        wanted = f"lakebroker: {what.format(**at)}, which is not installed: pip install 'lakebroker[{extra}]'"
        assert (status, out) == (1, ""), (command, out, err)
        assert err.startswith(wanted), command
        assert err.count("\n") == 1
    assert sorted(each.name for each in bare.folder.iterdir()) == ["store"]


def test_on_a_cluster_the_extra_that_brings_no_spark_is_named(tmp_path: Path) -> None:
    command = ["reput", "--store", str(tmp_path), "--lake", str(tmp_path / "lake")]
    ((status, _, err, _),) = of_commands([command], besides=SPARK)
    assert (status, err) == (
        1,
        "lakebroker: reput needs deltalake, which is not installed: pip install 'lakebroker[cluster]'\n",
    )


def test_every_help_and_the_version_need_no_extra(bare: Bare) -> None:
    assert len(bare.asking) > len(COMMANDS) + 2
    for command, (status, out, err, failed) in bare.asking.items():
        assert (status, err) == (0, ""), (command, failed)
        assert "Usage" in out or command == ("--version",)


def paths(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and group of commands."""
    for name, command in group.commands.items():
        yield (*before, name)
        if hasattr(command, "commands"):
            yield from paths(command, (*before, name))


def of_commands(commands: list[list[str]], besides: tuple[str, ...] = ()) -> list[Answer]:
    """Of each, with the base package alone."""
    answers = json.loads(run(bare_python(RUN_ALL.format(commands=commands), besides=besides)))
    return [tuple(answer) for answer in answers]


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-"],
        input=program,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_an_extra_that_names_others_asks_for_what_they_do() -> None:
    spark = requirements("spark")
    assert {*requirements("cluster")} < {*spark}
    assert not any(line.startswith("lakebroker") for line in requirements("dev"))
