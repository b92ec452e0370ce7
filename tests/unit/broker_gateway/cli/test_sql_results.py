"""Results of SQL: csv and json lose nothing, and nothing in them is run by a terminal or a spreadsheet."""

from __future__ import annotations

import base64
import csv
import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from broker_gateway.cli.questions.printing import shown_time
from broker_gateway.cli.sql_results import print_rows
from structured_streaming.errors import LakeError

UTC_US = pa.timestamp("us", tz="UTC")


def printed(rows: pa.Table, form: str, **options: Any) -> str:
    out = io.StringIO()
    print_rows(rows.to_reader(), form, out, **options)
    return out.getvalue()


def fields(rows: pa.Table, **options: Any) -> list[list[str]]:
    return list(csv.reader(io.StringIO(printed(rows, "csv", **options))))[1:]


def one(value: Any, kind: pa.DataType) -> pa.Table:
    return pa.table({"v": pa.array([value], kind), "w": pa.array([1])})


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (None, pa.string(), None),
        ("", pa.string(), ""),
        ("ä\x1b\n", pa.string(), "ä\x1b\n"),
        (1_700_000_000_123_456, UTC_US, "2023-11-14T22:13:20.123456Z"),
        (1_700_000_000_000_000, pa.timestamp("us"), "2023-11-14T22:13:20.000000"),
        (253_402_300_800_000_001, UTC_US, "10000-01-01T00:00:00.000001Z"),
        (b"\x00\xff", pa.binary(), "AP8="),
        (True, pa.bool_(), True),
        ((1 << 63) - 1, pa.int64(), (1 << 63) - 1),
        (0.1, pa.float64(), 0.1),
        (float("nan"), pa.float64(), "NaN"),
        (float("-inf"), pa.float64(), "-Infinity"),
        ([("a", "1"), ("b", None)], pa.map_(pa.string(), pa.string()), {"a": "1", "b": None}),
        ([(7, 1)], pa.map_(pa.int32(), pa.int64()), {"7": 1}),
        ([("a", "1"), ("a", "2")], pa.map_(pa.string(), pa.string()), [["a", "1"], ["a", "2"]]),
        (["x", None], pa.list_(pa.string()), ["x", None]),
        (
            {"topic": "t", "at": 1, "raw": b"\xff"},
            pa.struct([("topic", pa.string()), ("at", UTC_US), ("raw", pa.binary())]),
            {"topic": "t", "at": "1970-01-01T00:00:00.000001Z", "raw": "/w=="},
        ),
    ],
)
def test_every_type_comes_back(value: Any, kind: pa.DataType, expected: Any) -> None:
    rows = one(value, kind)
    assert json.loads(printed(rows, "json")) == [{"v": expected, "w": 1}]
    ((cell, _),) = fields(rows)
    if expected is None or isinstance(expected, str):
        assert cell == (expected or "")
    else:
        assert json.loads(cell) == expected


def test_null_and_empty_differ_in_csv() -> None:
    rows = pa.table({"v": pa.array([None, "", "NULL"]), "w": pa.array([1, 2, 3])})
    assert printed(rows, "csv") == 'v,w\r\n,1\r\n"",2\r\nNULL,3\r\n'


def test_a_spreadsheet_runs_no_text_and_the_text_comes_back() -> None:
    texts = [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        "\r=1",
        "＝1",
        "'quoted",
        "plain",
        "a=1",
        '=cmd|"/c"!A1',
        "",
    ]
    rows = pa.table({"v": pa.array(texts), "w": pa.array([-1] * len(texts))})
    cells = [cell for cell, _ in fields(rows)]
    assert not any(cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝")) for cell in cells)
    assert [cell[1:] if cell.startswith("'") else cell for cell in cells] == texts
    assert {number for _, number in fields(rows)} == {"-1"}, "a number is no text"
    assert [cell for cell, _ in fields(rows, escape=False)] == texts


def test_a_table_shows_markup_and_control_characters() -> None:
    rows = pa.table({"[/head]": pa.array(["[/x]\x1b[2J", None]), "body": pa.array([b"\xff\x1b[/b]", b""])})
    text = printed(rows, "table")
    assert "[/head]" in text
    assert "[/x]\\x1b[2J" in text
    assert "\\xff\\x1b[/b]" in text
    assert "NULL" in text
    assert "\x1b" not in text


def test_csv_on_a_terminal_shows_control_characters() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    print_rows(pa.table({"v": ["\x1b[2J"]}).to_reader(), "csv", out)
    assert out.getvalue() == "v\r\n\\x1b[2J\r\n"


def test_text_that_is_no_utf8_is_shown() -> None:
    text = pa.StringArray.from_buffers(1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff"))
    assert printed(pa.table({"v": text}), "csv") == "v\r\na\\xff\r\n"


def test_many_binary_bytes_come_back() -> None:
    body = bytes(range(256)) * 100
    ((cell, _),) = fields(one(body, pa.binary()))
    assert base64.b64decode(cell) == body


def test_json_refuses_two_columns_of_one_name() -> None:
    rows = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert printed(rows, "csv") == "a,a\r\n1,2\r\n"
    with pytest.raises(LakeError, match="column a stands twice"):
        printed(rows, "json")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 160, 200, 300])
def test_times_and_names_are_whole_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    name, message = "a-topic-with-a-name-of-some-size", "ID" + "0" * 30
    rows = pa.table(
        {
            "broker": ["b"] * 3,
            "at": pa.array([1_700_000_000_123_456] * 3, UTC_US),
            "q": [1, 2, 3],
            "topic": [name] * 3,
            "a": ["x", None, "y"],
            "message_id": [message] * 3,
            "body": [b"a body of many words " * 20] * 3,
            "is_system": [True, False, None],
        }
    )
    text = printed(rows, "table")
    for whole in ("2023-11-14 22:13:20.123456", name, message):
        assert text.count(whole) == 3, text
    assert "…" not in text
    if width >= 200:
        assert "│" in text, "a table where there is room for one"
        assert max(map(len, text.splitlines())) <= width


class Taken:
    """A result of many batches, which counts those that were asked for."""

    def __init__(self, batches: int) -> None:
        self.asked = 0
        self.batch = pa.record_batch({"n": list(range(1000))})
        self.rows = pa.RecordBatchReader.from_batches(self.batch.schema, self._taken(batches))

    def _taken(self, batches: int) -> Any:
        for _ in range(batches):
            self.asked += 1
            yield self.batch


class Watched(io.StringIO):
    """What is printed, and how many batches had been asked for when the first of it was."""

    def __init__(self, taken: Taken) -> None:
        super().__init__()
        self.taken = taken
        self.asked_at_first = 0

    def write(self, text: str) -> int:
        self.asked_at_first = self.asked_at_first or self.taken.asked
        return super().write(text)


@pytest.mark.parametrize(
    ("micros", "shown"),
    [
        (1_700_000_000_123_456, "2023-11-14 22:13:20.123456"),
        (1_700_000_000_120_000, "2023-11-14 22:13:20.120"),
        (0, "1970-01-01 00:00:00.000"),
        (-1, "1969-12-31 23:59:59.999999"),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_table_has_times_as_the_questions_by_name_have_them(
    micros: int, shown: str, zone: str | None
) -> None:
    rows = one(micros, pa.timestamp("us", zone))
    assert f" {shown} " in printed(rows, "table")
    assert shown_time(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)) == shown
    assert "T" in fields(rows)[0][0]


@pytest.mark.parametrize(("form", "kept"), [("csv", 1), ("json", 1), ("table", 10)])
def test_rows_are_printed_while_they_come(form: str, kept: int) -> None:
    taken = Taken(12)
    out = Watched(taken)
    print_rows(taken.rows, form, out)
    assert out.asked_at_first == kept
    text = out.getvalue()
    if form == "csv":
        assert text.splitlines() == ["n", *map(str, list(range(1000)) * 12)]
    elif form == "json":
        assert [row["n"] for row in json.loads(text)] == list(range(1000)) * 12
    else:
        shown = [line.strip("│ ") for line in text.splitlines() if line.startswith("│")]
        assert shown == list(map(str, list(range(1000)) * 12))


@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_what_fails_before_the_first_rows_prints_nothing(form: str) -> None:
    def failing() -> Any:
        raise LakeError("no rows")
        yield

    out = io.StringIO()
    with pytest.raises(LakeError, match="no rows"):
        print_rows(pa.RecordBatchReader.from_batches(pa.schema([("n", pa.int64())]), failing()), form, out)
    assert out.getvalue() == ""


@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_no_rows_have_a_form_too(form: str) -> None:
    rows = pa.Table.from_batches([], pa.schema([("n", pa.int64()), ("m", pa.string())]))
    text = printed(rows, form)
    assert {"csv": text == "n,m\r\n", "json": text == "[]\n", "table": "n" in text and "m" in text}[form]
