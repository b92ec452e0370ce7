"""What comes from the wire is shown as it is, and moves no terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from broker_gateway.cli.main import app
from broker_gateway.cli.output import confirm, fail, limited, show
from store.counting import counted
from store.log.record import Host, PendingRecord, encode_properties
from store.message_store import MessageStore
from store.opening import StoreOptions

HOST = Host("127.0.0.1", 10911)
HOSTILE = "[/x][red]\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\x7f"
SHOWN = "[/x][red]\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\\u202egnp.exe\\x7f"


def controls(text: str) -> set[str]:
    """Characters that a terminal obeys."""
    return {each for each in text if not each.isprintable() and each != "\n"}


def test_a_table_shows_markup_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": HOSTILE, "queues": 8}], ["name", "queues"], as_json=False)
    out = capsys.readouterr().out
    assert SHOWN in out
    assert controls(out) == set()
    show([{"name": HOSTILE}], ["name"], as_json=True)
    out = capsys.readouterr().out
    assert json.loads(out) == [{"name": HOSTILE}]
    assert controls(out) <= {"\x7f"}


def test_emoji_and_words_of_joined_letters_stay(capsys: pytest.CaptureFixture[str]) -> None:
    show([{"name": "👩\u200d💻 می\u200cخواهم ü漢"}], ["name"], as_json=False)
    assert "👩\u200d💻 می\u200cخواهم ü漢" in capsys.readouterr().out


def test_an_error_shows_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        fail(f"the gateway answered: {HOSTILE}")
    assert capsys.readouterr().err == f"lakebroker: the gateway answered: {SHOWN}\n"


def test_records_of_a_store_are_shown_as_they_are(tmp_path: Path) -> None:
    store = MessageStore.open(
        tmp_path, StoreOptions(broker="b", cluster="c", store_host=HOST, segment_size=1 << 18)
    )
    properties = encode_properties({"UNIQ_KEY": "ID", "KEYS": "k", "colour": HOSTILE})
    store.append([PendingRecord("t[/x]\x1b[31m", 0, b"\x1b[2J[/y]", properties, 1, HOST.packed)])
    store.close()
    for arguments in ([], ["--key", "k"]):
        done = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["store", "inspect", str(tmp_path), *arguments])
        assert done.exit_code == 0, done.exception
        assert "t[/x]\\x1b[31m" in done.stdout
        assert controls(done.output) == set()
    assert "\\x1b[2J[/y]" in done.stdout
    assert f"colour = {SHOWN}" in done.stdout


def test_numbers_of_things() -> None:
    assert [counted(number, "topic") for number in (0, 1, 2000)] == ["0 topics", "1 topic", "2,000 topics"]
    assert counted(1, "entry", "entries") == "1 entry"
    assert counted(2, "entry", "entries") == "2 entries"
    assert limited("newest", 1, "message") == "only the newest message is listed; --limit lists more"
    assert limited("first", 2, "event") == "only the first 2 events are listed; --limit lists more"


def test_a_row_that_does_not_fit_is_shown_as_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ["consumer_group", "topic", "committed_offset", "max_offset", "漢字", "commit_timestamp"]
    rows = [
        dict(zip(names, ("g" * 40, "t", 12, 30, "x" * 300, "2023-11-14T22:13:20.123456Z"), strict=True)),
        dict(zip(names, ("[red]", HOSTILE, 0, 0, "a\nb", ""), strict=True)),
    ]
    show(rows, names, as_json=False)
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "-- row 1 of 2",
        f"consumer_group    {'g' * 40}",
        "topic             t",
        "committed_offset  12",
        "max_offset        30",
        f"漢字              {'x' * 300}",
        "commit_timestamp  2023-11-14T22:13:20.123456Z",
        "-- row 2 of 2",
        "consumer_group    [red]",
        f"topic             {SHOWN}",
        "committed_offset  0",
        "max_offset        0",
        "漢字              a",
        "                  b",
        "commit_timestamp  ",
    ]
    show([], names * 3, as_json=False)
    assert capsys.readouterr().out.startswith("no rows of consumer_group, topic, ")


def test_who_is_asked_reads_what_would_be_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    asked: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda question: asked.append(question))
    forms: tuple[dict[str, str], ...] = ({}, {"verb": "erase", "how": " for good"})
    for arguments in forms:
        with pytest.raises(typer.Exit):
            confirm("18 records of key a", False, **arguments)
    assert asked == ["Delete 18 records of key a?", "Erase 18 records of key a for good?"]
    assert capsys.readouterr().err.splitlines() == [
        "lakebroker: nothing is deleted",
        "lakebroker: nothing is erased",
    ]


def test_what_there_is_not_is_an_empty_cell(capsys: pytest.CaptureFixture[str]) -> None:
    show(
        [{"broker": "a", "retired": None, "fifo": True, "new": False}],
        ["broker", "retired", "fifo", "new"],
        as_json=False,
    )
    (row,) = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [cell.strip() for cell in row.split("│")[1:-1]] == ["a", "", "yes", "no"]


@pytest.mark.parametrize(("width", "table"), [(66, True), (65, False)])
def test_a_table_is_one_as_long_as_names_and_short_values_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, table: bool
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name, value = "n" * 27, "v" * 500
    show([{name: 1, "text": value}], [name, "text"], as_json=False)
    out = capsys.readouterr().out
    assert ("│" in out) is table
    assert name in out
    assert out.count("v") == 500
