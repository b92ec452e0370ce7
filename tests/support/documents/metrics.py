"""The metrics that docs/metrics.md names."""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


def documented(section: str) -> dict[str, set[str]]:
    """Labels by name, of a section."""
    found = {}
    (text,) = [each for each in DOCUMENT.read_text().split("\n## ") if each.startswith(f"{section}\n")]
    for line in text.splitlines():
        if line.startswith("| `"):
            names, _, *labels = line.strip("| ").split(" | ")
            for name in re.findall(r"`(\w+)`", names):
                found[name] = set(re.findall(r"`(\w+)`", labels[0] if labels else ""))
    return found
