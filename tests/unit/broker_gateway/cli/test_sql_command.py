"""`lakebroker sql` by the engine in its own process: what ends a script, what is refused, and that results lose nothing."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from lakebroker_testing.logs import LogWriter
from tests.support.lakes.copies import copy_folder
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.hostile_row import ANSWER, AT, BODY, MESSAGE_ID, ORIGIN, hostile_lake
from tests.support.lakes.union import commit, cuts, manifest
from tests.support.machines.zones import local_time


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one message. Nothing here changes it."""
    folder = tmp_path_factory.mktemp("sql")
    lake = hostile_lake(folder / "lake")
    # delta-rs, which wrote the rows, panics at such a name
    return lake.rename(folder / "a 'lake' ü*[x]{y,z}#")


def asked(lake: Path, *arguments: str, given: str | bytes | None = None) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["sql", "--lake", str(lake), *arguments], given)


@pytest.fixture
def far_away() -> Iterator[None]:
    with local_time("Asia/Kathmandu"):
        yield


def test_results_are_in_utc_and_lose_nothing(lake: Path, far_away: None) -> None:
    statement = f"""SELECT {", ".join(ANSWER)},
                   INTERVAL 1 YEAR AS years, INTERVAL 1 SECOND AS seconds, DATE '2024-02-29' AS day,
                   make_timestamptz(-1) AS early, CAST(1.1 AS DECIMAL(3, 2)) AS "decimal" FROM messages"""
    done = asked(lake, "--format", "json", statement)
    assert (done.exit_code, done.stderr) == (0, ""), done.exception
    expected = {
        **ANSWER,
        "years": "P12M0DT0S",
        "seconds": "P0M0DT1S",
        "day": "2024-02-29",
        "early": "1969-12-31T23:59:59.999999Z",
        "decimal": "1.10",
    }
    assert json.loads(done.stdout) == [expected]

    (row,) = csv.DictReader(io.StringIO(asked(lake, "--format", "csv", statement).stdout))
    assert row["store_timestamp"] == AT
    assert (row["tag"], row["message_id"], row["flag"]) == ("'=1+1", MESSAGE_ID, "")
    assert json.loads(row["properties"]) == {"k": "v"}
    assert json.loads(row["origin"]) == ORIGIN
    assert base64.b64decode(row["body"]) == BODY
    done = asked(lake, "--format", "csv", "--no-escape", "SELECT tag FROM messages")
    assert done.stdout_bytes == b"tag\r\n=1+1\r\n"

    done = asked(lake, 'SELECT message_id AS "[/head]", store_timestamp, 1 AS a, 2 AS a FROM messages')
    assert done.exit_code == 0, done.exception
    assert "[/head]" in done.stdout
    assert "[/x]\\x1b[2J" in done.stdout
    assert AT.replace("T", " ").removesuffix("Z") in done.stdout
    assert "\x1b" not in done.output


@pytest.mark.parametrize("given", ["argument", "input"])
def test_statements_end_with_the_first_that_fails(lake: Path, given: str) -> None:
    line = "/* two */ SELECT 1 AS a; SELECT 2 AS a; SELECT 3 FROM nowhere; SELECT 4 AS a"
    if given == "argument":
        done = asked(lake, "--format", "csv", line)
    else:
        done = asked(lake, "--format", "csv", given=f"{line};\nSELECT 5 AS a\n")
    assert done.exit_code == 1
    assert done.stdout == "a\n1\na\n2\n"
    assert "nowhere" in done.stderr


def test_lines_of_a_script(lake: Path) -> None:
    """A statement of several lines is not run in part, nor what is in a comment."""
    script = "SELECT 1\nAS a;\n\n-- none; at all\nSELECT 2 AS a;/*\nSELECT 3;\n*/ SELECT 4\nAS a"
    done = asked(lake, "--format", "csv", given=script)
    assert (done.exit_code, done.stdout) == (0, "a\n1\na\n2\na\n4\n")


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["SELECT 1 AS a; /* open; SELECT 2"], None),
        ([], "SELECT 1 AS a; /* open;\nSELECT 2;\n"),
    ],
)
def test_a_comment_that_is_not_closed_is_refused(lake: Path, arguments: list[str], given: str | None) -> None:
    done = asked(lake, "--format", "csv", *arguments, given=given)
    assert (done.exit_code, done.stdout) == (1, "a\n1\n")
    assert "unterminated /* comment" in done.stderr


def test_what_fails_while_it_runs_is_one_error(lake: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "lake"
    copy_folder(lake, damaged)
    for each in (damaged / "messages").rglob("*.parquet"):
        each.unlink()
    done = asked(damaged, "--format", "csv", "SELECT * FROM messages")
    assert (done.exit_code, done.stdout) == (1, ""), done.exception
    assert "No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_input_that_is_no_text_is_one_error(lake: Path) -> None:
    done = asked(lake, "--format", "csv", given=b"SELECT 1 AS a;\nSELECT '\xe9';\n")
    assert done.exit_code == 1
    assert "no UTF-8 text" in done.stderr


@pytest.mark.parametrize("nothing", ["", " ; ", "/* none */ -- at all"])
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_an_argument_without_a_statement(lake: Path, engine: str, nothing: str) -> None:
    done = asked(lake, "--engine", engine, nothing)
    assert done.exit_code == 2
    assert (
        done.stderr
        == f"lakebroker: there is no statement in {nothing!r}; give a statement, or leave the argument out to type statements\n"
    )


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A lake that has the first half of a log's 80 messages, and the store with the log."""
    folder = tmp_path_factory.mktemp("half")
    lake = empty_lake(str(folder / "lake")).path
    with LogWriter(folder / "store") as writer:
        writer.messages(80)
    first, middle, _ = cuts(writer.folder, 2)
    commit(lake, manifest(lake, writer.folder, first, middle))
    return lake, writer.folder


def test_it_is_said_how_old_tables_are_and_logs_are_read_when_asked(half: tuple[Path, Path]) -> None:
    lake, store = half

    def count(*options: str) -> Any:
        return asked(lake, "--strict", "--format", "json", *options, "SELECT count(*) AS n FROM messages")

    alone, live, before = count(), count("--store", str(store)), count("--as-of", "1")
    assert (alone.exit_code, live.exit_code, before.exit_code) == (0, 0, 0), live.output
    assert "tables alone, as of 20" in alone.stderr
    assert alone.stderr.endswith("s ago); add --brokers, --namesrv or --store to include what is newer\n")
    assert (live.stdout, live.stderr) == ('[{"n": 80}]\n', "")
    assert before.stdout == alone.stdout < live.stdout
    assert "tables as of batch 1, committed at" in before.stderr


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--store", "STORE", "--as-of", "1"), "--as-of is of the tables alone"),
        (("--store", "STORE", "--write"), "--write changes tables"),
        (("--brokers", "127.0.0.1"), "--brokers: "),
    ],
)
def test_what_does_not_go_together_is_refused_before_an_engine_starts(
    half: tuple[Path, Path], engine: str, options: tuple[str, ...], said: str
) -> None:
    lake, store = half
    given = [each.replace("STORE", str(store)) for each in options]
    done = asked(lake, "--engine", engine, *given, "SELECT 1")
    assert done.exit_code in (1, 2)
    assert (done.stdout, "starting Spark" in done.stderr) == ("", False)
    assert said in done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--brokers", "127.0.0.1:9"), "no broker at 127.0.0.1:9"), (("--as-of", "7"), "has no batch 7")],
)
def test_what_is_not_there_is_an_error(half: tuple[Path, Path], options: tuple[str, ...], said: str) -> None:
    done = asked(half[0], "--strict", *options, "SELECT count(*) FROM messages")
    assert (done.exit_code, done.stdout) == (1, "")
    assert said in done.stderr
