"""SQL is divided where Spark's lexer sees a semicolon."""

from __future__ import annotations

import pytest

from broker_gateway.cli.statements import divided, statements


@pytest.mark.parametrize(
    ("text", "expected"),
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
        ("select 1; /* open; select 2", ["select 1", "/* open; select 2"]),
        ("select 1; -- c\rselect 2", ["select 1", "-- c\rselect 2"]),
        ("-- c \\\nstill; c\nselect 2; x", ["-- c \\\nstill; c\nselect 2", "x"]),
        ("select 0; /* a /*+ b */ select 1", ["select 0", "/* a /*+ b */ select 1"]),
        ("select /*+ foo('*/; ') */ 1; x", ["select /*+ foo('*/; ') */ 1", "x"]),
        ("f as $$ a; b $$; x", ["f as $$ a; b $$", "x"]),
        ("f as $py$ a; $$; b $py$; x", ["f as $py$ a; $$; b $py$", "x"]),
        ("f as $$ a; b", ["f as $$ a; b"]),
        ("begin select 1; end; x", ["begin select 1; end", "x"]),
        (
            "a: begin if x then y; end if; begin z; end; select case when 1 then 2 end; end a; x",
            ["a: begin if x then y; end if; begin z; end; select case when 1 then 2 end; end a", "x"],
        ),
        ("begin select x as end; select 2; end; x", ["begin select x as end; select 2; end", "x"]),
        ("begin select begin; delete from end; end; x", ["begin select begin; delete from end; end", "x"]),
        (
            "begin select case when a then begin end; end; x",
            ["begin select case when a then begin end; end", "x"],
        ),
        (
            "begin case when a then select 1; else begin end; end case; end; x",
            ["begin case when a then select 1; else begin end; end case; end", "x"],
        ),
        (
            "begin declare exit handler for sqlexception begin select 1; end; select 2; end; x",
            ["begin declare exit handler for sqlexception begin select 1; end; select 2; end", "x"],
        ),
        (
            "begin l: while a do begin select 1; end; end while l; end; x",
            ["begin l: while a do begin select 1; end; end while l; end", "x"],
        ),
        ("begin begin end; end; x", ["begin begin end; end", "x"]),
        *[
            (f"{block}; x", [block, "x"])
            for block in (
                "begin not atomic begin select 1; end; end",
                "begin not atomic begin not atomic select 1; end; end",
                "begin not atomic end",
                "begin select begin end; end",
                "begin select case when a then begin.end end; end",
                "begin select case a when 1 then end else begin end; select 1; end",
                "begin set x = case when a then begin else end end; end",
                "begin select v:end; select 1; end",
                "begin select v:begin; select 1; end",
                "begin select a from t where x = :end; select 1; end",
                "begin select a[0:end]; select 1; end",
                "begin l: begin select 1; end l; select 2; end",
                "begin declare exit handler for sqlexception begin not atomic select 1; end; select 2; end",
                "begin declare begin int; set begin = 1; end",
                "begin if a then begin case x when 1 then select 1; end case; end; end if; end",
            )
        ],
        ("'" + r"\'" * 100_000 + "\\", ["'" + r"\'" * 100_000 + "\\"]),
        ("/* x */" + " " * 100_000 + "select 1", ["/* x */" + " " * 100_000 + "select 1"]),
    ],
)
def test_a_text_is_divided_at_semicolons(text: str, expected: list[str]) -> None:
    assert statements(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1", ([], "select 1")),
        ("select 1; -- done\n", (["select 1"], "")),
        ("-- note \\\n", ([], "-- note \\\n")),
        ("select 1; /* not\n", (["select 1"], " /* not\n")),
        ("select 1; select\n", (["select 1"], " select\n")),
        ("select 'a;\n", ([], "select 'a;\n")),
        ("begin select 1;\n", ([], "begin select 1;\n")),
        ("begin select 1;\nend;\n", (["begin select 1;\nend"], "")),
    ],
)
def test_what_no_semicolon_ends_is_left(text: str, expected: tuple[list[str], str]) -> None:
    assert divided(text) == expected
