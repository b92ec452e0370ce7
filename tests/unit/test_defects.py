"""The list of defects fits the tree, and what is made of pytest's answers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.suite import defects
from tests.suite.defects import Copy, Defect, DefectsError

SAMPLE = Defect(
    "d", "code.py", "a < b", "a <= b", "What is equal is not below.", ("tests/cheap", "tests/dear")
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "code.py").write_text("a < b\n")
    for path in SAMPLE.tests:
        (tmp_path / path).mkdir(parents=True)
    return tmp_path


@pytest.mark.parametrize("defect", [pytest.param(each, id=each.id) for each in defects.read()])
def test_a_defect_fits_the_tree(defect: Defect) -> None:
    compile(defect.inserted(defects.ROOT), defect.file, "exec")


@pytest.mark.parametrize(
    ("text", "changed", "said"),
    [
        ("b > a\n", {}, r"defect d: its old text is not in code\.py"),
        ("a < b or a < b\n", {}, r"defect d: its old text stands 2 times in code\.py"),
        ("a < b\n", {"file": "gone.py"}, r"defect d: gone\.py cannot be read: No such file"),
        ("a < b\n", {"tests": ("tests/gone",)}, r"defect d: there are no tests tests/gone"),
    ],
)
def test_a_defect_that_does_not_fit_is_named(
    tree: Path, text: str, changed: dict[str, object], said: str
) -> None:
    (tree / "code.py").write_text(text)
    defect = dataclasses.replace(SAMPLE, **changed)  # type: ignore[arg-type]
    with pytest.raises(DefectsError, match=said):
        defect.inserted(tree)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            'id = "a"\nmore = 1',
            "defect a: breaks, file, more, new, old, tests: missing, or none of its fields",
        ),
        (
            'id = "a"\nfile = "f"\nold = "x"\nnew = "x"\nbreaks = "r"\ntests = ["t"]',
            "a new text that differs",
        ),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path: Path, changed: str, said: str) -> None:
    (tmp_path / "list.toml").write_text(f"[[defect]]\n{changed}\n")
    with pytest.raises(DefectsError, match=said):
        defects.read(tmp_path / "list.toml")


def test_an_id_stands_once(tmp_path: Path) -> None:
    one = '[[defect]]\nid = "a"\nfile = "f"\nold = "x"\nnew = "y"\nbreaks = "r"\ntests = ["t"]\n'
    (tmp_path / "list.toml").write_text(one * 2)
    with pytest.raises(DefectsError, match="defect a is there twice"):
        defects.read(tmp_path / "list.toml")


def test_an_unknown_id_is_refused() -> None:
    assert defects.chosen([SAMPLE], []) == defects.chosen([SAMPLE], ["d"]) == [SAMPLE]
    with pytest.raises(DefectsError, match="there is no defect e; --check lists all"):
        defects.chosen([SAMPLE], ["d", "e"])


def test_a_defect_is_in_the_file_for_as_long_as_it_is_held(tree: Path) -> None:
    compiled = tree / "__pycache__" / "code.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    with Copy(tree, "c0ffee", Path("python")).holding(SAMPLE):
        assert (tree / "code.py").read_text() == "a <= b\n"
        assert not compiled.exists()
        compiled.touch()
    assert (tree / "code.py").read_text() == "a < b\n"
    assert not compiled.exists()


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (0, "9 passed\n", ("passed", "")),
        (1, "FAILED t/a.py::test[x - y] - assert 1 == 2\n1 failed\n", ("failed", "t/a.py::test[x - y]")),
        (1, "FAILED t/a.py::test[0 1]\n", ("failed", "t/a.py::test[0 1]")),
        (2, "ERROR t/a.py - ImportError: no\n", ("failed", "t/a.py")),
        (5, "no tests ran\n", ("pytest ended with status 5: no tests ran", "")),
        (-9, "", ("pytest ended with status -9: ", "")),
    ],
)
def test_what_pytest_answers(status: int, said: str, expected: tuple[str, str]) -> None:
    assert defects.outcome(status, said) == expected


class Answers(Copy):
    """Of pytest, in the place of its process: by path with the defect, and the tests that fail without it, too."""

    def __init__(self, tree: Path, failing: dict[str, list[str]], broken: set[str]) -> None:
        super().__init__(tree, "c0ffee", Path("python"))
        self.failing = failing
        self.broken = broken

    def run(self, tests: Sequence[str], limit_s: float, left_out: Sequence[str] = ()) -> tuple[str, str]:
        (path,) = tests
        if (self.tree / "code.py").read_text() == "a < b\n":
            return ("failed", path) if path in self.broken else ("passed", "")
        left = [each for each in self.failing.get(path, []) if each not in left_out]
        return ("failed", left[0]) if left else ("passed", "")


def test_the_first_path_that_finds_a_defect_is_the_last_that_is_tried(tree: Path) -> None:
    found = defects.attempt(SAMPLE, Answers(tree, {"tests/dear": ["dear::a"]}, set()), 1)
    assert (found["found"], found["test"], found["commit"]) == (True, "dear::a", "c0ffee")
    assert [(each["path"], each["outcome"]) for each in found["tried"]] == [
        ("tests/cheap", "passed"),
        ("tests/dear", "failed"),
    ]


def test_a_test_that_fails_without_the_defect_finds_nothing(tree: Path) -> None:
    failing = {"tests/cheap": ["cheap::broken", "cheap::good"]}
    found = defects.attempt(SAMPLE, Answers(tree, failing, {"cheap::broken"}), 1)
    assert found["test"] == "cheap::good"
    assert found["tried"][0]["broken"] == ("cheap::broken",)
    nothing = defects.attempt(SAMPLE, Answers(tree, {"tests/cheap": ["cheap::broken"]}, {"cheap::broken"}), 1)
    assert not nothing["found"]
    assert [each["outcome"] for each in nothing["tried"]] == ["passed", "passed"]


def test_the_table_has_what_found_a_defect_or_that_nothing_did(tree: Path) -> None:
    found = defects.attempt(SAMPLE, Answers(tree, {"tests/cheap": ["cheap::a"]}, set()), 1)
    missed = defects.attempt(SAMPLE, Answers(tree, {}, set()), 1)
    json.dumps([found, missed])
    by = defects.table([found, missed]).columns[1]
    assert list(by.cells) == ["cheap::a", "[red]not found[/red]"]
