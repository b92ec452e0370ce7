"""Links of README, CONTRIBUTING and docs lead to files and headings that there are, on the site and where the repository is read."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.documents.blocks import PAGES, ROOT

_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@cache
def headings(page: Path) -> tuple[str, ...]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return tuple(re.findall(r"^#{1,6} (.+?) *$", text, re.MULTILINE))


def on_the_site(heading: str) -> str:
    """The anchor that mkdocs makes."""
    text = re.sub(r"[^\w\s-]", "", heading).strip().lower()
    return re.sub(r"[-\s]+", "-", text)


def where_read(heading: str) -> str:
    """The anchor that a host of repositories makes: each space is a dash."""
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def broken(page: Path) -> list[str]:
    found = []
    for match in _LINK.finditer(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        target = match["target"]
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or not to.is_relative_to(ROOT):
            found.append(f"{page.name}: {target}: there is no such file")
        elif anchor and not any(on_the_site(each) == where_read(each) == anchor for each in headings(to)):
            found.append(f"{page.name}: {target}: there is no such heading")
    return found


def test_links_lead_somewhere() -> None:
    assert [each for page in PAGES for each in broken(page)] == []


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("[a](README.md)", ""),
        ("[a](READYOU.md)", "no such file"),
        ("[a](README.md#five-examples)", ""),
        ("[a](README.md#six-examples)", "no such heading"),
        ("[a](#here)", ""),
        ("[a](#there)", "no such heading"),
    ],
)
def test_what_leads_nowhere_is_found(
    link: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.test_links.ROOT", tmp_path)
    (tmp_path / "README.md").write_text("# x\n\n## Five examples\n")
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n\n{link}\n")
    assert "; ".join(broken(page)).endswith(wrong)
    assert bool(broken(page)) == bool(wrong)


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    missing = [
        str(page.relative_to(ROOT / "docs"))
        for page in PAGES
        if page.is_relative_to(ROOT / "docs") and str(page.relative_to(ROOT / "docs")) not in nav
    ]
    assert missing == []
