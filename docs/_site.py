"""Hooks of the site: pages that are not written yet are left out of its navigation, CONTRIBUTING.md is a page, and links to files of
the repository become their paths."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
_OUTSIDE = {"contributing.md": "CONTRIBUTING.md"}
"""Pages that stand elsewhere in the repository."""
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = _written(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, path in _OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Links lead to other pages of the site; to what is not one of them, the path in the repository is written out."""
    source = _OUTSIDE.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def link(found: re.Match[str]) -> str:
        text, target, anchor = found["text"], found["target"], found["anchor"] or ""
        if re.match(r"\w+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        here = "index.md" if path == "README.md" else next((p for p, f in _OUTSIDE.items() if f == path), "")
        if path.startswith("docs/") or here:
            name = here or path.removeprefix("docs/")
            return f"[{text}]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri) or '.')}{anchor})"
        if text.strip("`") in (path, posixpath.basename(path)):
            return f"`{path}`"
        return f"{text} (`{path}`)"

    return _LINK.sub(link, markdown)


def _written(nav: list[Any]) -> list[Any]:
    """Without what is not there."""
    kept: list[Any] = []
    for entry in nav:
        if isinstance(entry, str):
            kept += [entry] if _is_there(entry) else []
            continue
        ((title, below),) = entry.items()
        if isinstance(below, list):
            kept.append({title: _written(below)})
        elif _is_there(below):
            kept.append(entry)
    return kept


def _is_there(page: str) -> bool:
    return page in _OUTSIDE or (ROOT / "docs" / page).is_file()
