"""A part of the evidence is due when it has no result, a failed one, one of a tree with changes, or one that is older than the code it covers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.suite.evidence_due import covered, look, parts

LONG = "from tests.suite.evidence import LONG\n"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    for name, text in {
        "store/log/flush.py": "",
        "store/scan.py": "",
        "broker_gateway/app/broker.py": "",
        "tests/support/logs/raw.py": "from store.log import flush\n",
        "tests/unit/test_scan.py": f"{LONG}from store import scan\nfrom tests.support.logs import raw\n",
        "tests/fault/test_crash.py": f"{LONG}from lakebroker_testing.gateway import Gateway\n",
        "tests/unit/test_short.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
    return subprocess.run(
        ["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True
    ).stdout


def commit(root: Path) -> str:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "a change")
    return git(root, "rev-parse", "HEAD").strip()


def test_parts_are_files_with_a_long_form_and_cover_what_they_import(tree: Path) -> None:
    assert parts(tree) == ["tests/fault/test_crash.py", "tests/unit/test_scan.py"]
    assert covered("tests/unit/test_scan.py", tree) == ("store/log", "store/scan.py")
    assert covered("tests/fault/test_crash.py", tree) == ("broker_gateway", "store", "structured_streaming")


def test_what_changed_since_the_last_run_makes_a_part_due(tree: Path) -> None:
    ran = commit_of_change(tree, "docs")
    record = {
        "tests/unit/test_scan.py::test_a": {"outcome": "passed", "commit": ran},
        "tests/fault/test_crash.py::test_b": {"outcome": "passed", "commit": ran},
    }
    assert [each.reason for each in look(record, tree)] == ["", ""]
    assert [each.reason for each in look({}, tree)] == ["never recorded", "never recorded"]
    commit_of_change(tree, "broker_gateway/app/broker.py")
    assert {each.path: each.reason for each in look(record, tree)} == {
        "tests/fault/test_crash.py": "1 commits since",
        "tests/unit/test_scan.py": "",
    }
    failed = {name: each | {"outcome": "failed"} for name, each in record.items()}
    assert {each.reason for each in look(failed, tree)} == {"1 failed"}
    dirty = {name: each | {"commit": f"{each['commit']}-dirty"} for name, each in record.items()}
    assert {each.reason for each in look(dirty, tree)} == {"ran on a changed tree"}


def commit_of_change(tree: Path, name: str) -> str:
    with (tree / name).open("a") as file:
        file.write("# changed\n")
    return commit(tree)
