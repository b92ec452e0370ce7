"""The documents as a site: it builds, asks nobody else for anything, and a link that leads nowhere stops it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents.blocks import ROOT
from tests.support.waiting import LIMIT_S

_ASKED_FOR = re.compile(
    r"""<(?:script|img|iframe|link rel="stylesheet")[^>]*\b(?:src|href)="(?:https?:)?//"""
)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What the site is made of."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("*.jsonl", "__pycache__"))
    for name in ("mkdocs.yml", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs`. With `--quiet` warnings would not count as errors."""
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_it_builds_and_asks_nobody_else_for_anything(copied: Path) -> None:
    done = build(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    site = copied / "build" / "site"
    pages = list(site.rglob("*.html"))
    assert {"index.html", "using.html", "tables.html", "contributing.html"} <= {page.name for page in pages}
    assert [page.name for page in pages if _ASKED_FOR.search(page.read_text())] == []
    text = (site / "using.html").read_text()
    assert "structured_streaming/source/data_source.py" in text, (
        "a file of the repository is named by its path"
    )
    assert 'href="views.html#lag"' in text, "a page of the site is linked"
    assert "not run:" not in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL), (
        "marks for the tests are not shown"
    )


def test_a_page_a_heading_and_an_entry_of_the_navigation_that_are_not_there_stop_it(copied: Path) -> None:
    """In a site of two pages, and of files that are no pages."""
    for each in (copied / "docs").glob("*.md"):
        if each.name not in ("index.md", "views.md"):
            each.unlink()
    page = copied / "docs" / "index.md"
    page.write_text(page.read_text() + "\n[a](nowhere.md) [b](views.md#nothing)\n")
    (copied / "docs" / "lost.md").write_text("# Lost\n")
    done = build(copied)
    warnings = re.findall(r"^WARNING +-  (.+(?:\n  - .+)*)", done.stdout + done.stderr, re.MULTILINE)
    assert done.returncode != 0
    for missing in ("'nowhere.md'", "'#nothing'", "- lost.md"):
        assert any(missing in each for each in warnings), missing
