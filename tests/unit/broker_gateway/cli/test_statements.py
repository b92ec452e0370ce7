"""A line of SQL is divided where Spark's own shell divides it."""

from __future__ import annotations

import pytest

from broker_gateway.cli.statements import statements


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        (" ;; ", []),
        ("", []),
        ("select 1; -- done; really", ["select 1"]),
        ("/* first; */; select 1 /* last */;", ["select 1 /* last */"]),
        ("select ';', \";\", `;`; x", ["select ';', \";\", `;`", "x"]),
        (r"select '\';'; x", [r"select '\';'", "x"]),
        (r"select r'\'; x", [r"select r'\'", "x"]),
        (r"select var'\'; x'", [r"select var'\'; x'"]),
        ("select 'it''s;'; x", ["select 'it''s;'", "x"]),
        ("select /* ; */ 1; x -- ; y", ["select /* ; */ 1", "x -- ; y"]),
        ("select 'open; delete", ["select 'open; delete"]),
        ("select 1 /* open; delete", ["select 1 /* open; delete"]),
        ("BEGIN DELETE FROM a; END", ["BEGIN DELETE FROM a; END"]),
        ("select 1; /* c */ begin delete from a; end", ["select 1", "/* c */ begin delete from a; end"]),
        ("beginning; x", ["beginning", "x"]),
        ("lbl: begin select 1; end", ["lbl: begin select 1; end"]),
        ("`l b` : /* c */ BEGIN select 1; end", ["`l b` : /* c */ BEGIN select 1; end"]),
        ("select a begin; x", ["select a begin", "x"]),
        ("/* a */ select 1; /* b */ select 2", ["/* a */ select 1", "/* b */ select 2"]),
        ("-- why\nselect 1; x", ["-- why\nselect 1", "x"]),
        ("select 1 /* a /* n; */ ; b */; x", ["select 1 /* a /* n; */ ; b */", "x"]),
        ("/* x */" + " " * 100_000 + "select 1", ["/* x */" + " " * 100_000 + "select 1"]),
    ],
)
def test_a_line_is_divided_at_semicolons(line: str, expected: list[str]) -> None:
    assert statements(line) == expected
