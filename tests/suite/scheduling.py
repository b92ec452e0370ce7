"""How files of tests are divided among workers.

A file stays in one worker, and so do all files whose tests share a fixture that is dear to make: one real RocketMQ serves a whole
run, and two Spark sessions do: with one session, its tests would take longer than all others together in the other workers. (Not
`--dist loadgroup`: pytest 9.2 lets no plugin change a test's id, which is how pytest-xdist 3.8 tells its groups, and without a word
each test goes its own way.)
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

DEAR = ("rocketmq", "spark")
"""Fixtures of a session that start many processes, or one that takes much memory."""
SPARK_FOLDER, ELSEWHERE = Path("integration", "spark"), "spark elsewhere"
"""The tests in this folder have one session, those of other folders another one."""
LONGEST = (
    *DEAR,
    ELSEWHERE,
    "tests/interop/test_store_exchange.py",
    "tests/interop/test_scale_out.py",
    "tests/interop/test_catalogs.py",
    "tests/interop/test_object_store.py",
)
"""Groups that begin first, so that no worker is left alone with one of them at the end."""
_REQUESTED = re.compile(rf"(?:[(,]\s*|usefixtures\(\")({'|'.join(DEAR)})\b\"?\s*[:,)]")
"""A parameter of a test or of a fixture, or a mark."""


@functools.cache
def group_of(file: Path) -> str:
    """The dear fixture that a file's tests, or fixtures of its folder, ask for; else the file's own name from `tests/` on."""
    for each in (file, file.with_name("conftest.py")):
        if each.exists() and (found := _REQUESTED.search(each.read_text(encoding="utf-8"))):
            within = file.parent.parts[-2:] == SPARK_FOLDER.parts
            return found[1] if found[1] != "spark" or within else ELSEWHERE
    return f"tests/{str(file).rpartition('/tests/')[2]}"


class BySharing(LoadScopeScheduling):
    """Hands out groups, in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath

    def _split_scope(self, nodeid: str) -> str:
        return group_of(self._root / nodeid.partition("::")[0])


def in_order(items: list[pytest.Item]) -> None:
    """Sorts tests by group, the longest groups first; else as they were."""
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(group_of(item.path), len(rank)))
