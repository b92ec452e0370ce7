"""How files of tests are divided among workers.

A file stays in one worker. What is dear to make is made in few of them: files whose tests ask for it go to a worker that has it,
as long as there are any. One real RocketMQ serves a whole run, and one Spark session does: a second one cost 80 CPU seconds for
code that runs for the first time, and all of its tests in one worker take no longer than all others in the other workers. (Not
`--dist loadgroup`: it knows groups alone, each in one worker.)
"""

from __future__ import annotations

import functools
import os
import re
import statistics
import time
from collections import defaultdict
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.suite.patience import FACTOR, runnable

DEAR = {"rocketmq": 1, "spark": 1}
"""Fixtures of a session that start many processes, or one that takes much memory, and how many workers may have one."""
LONGEST = (
    "tests/interop/test_store_exchange.py",
    "tests/interop/test_scale_out.py",
    "tests/interop/test_catalogs.py",
    "tests/interop/test_object_store.py",
    "tests/interop/test_mqadmin.py",
    "tests/interop/test_extras.py",
    "tests/interop/test_dashboard.py",
    "tests/interop/test_spark_versions.py",
    "tests/interop/test_registration.py",
    "tests/interop/test_iceberg.py",
    "tests/interop/test_spark_submit.py",
    "tests/interop/test_console.py",
    "tests/interop/test_sidecar.py",
    "tests/interop/test_lite_administration.py",
    "tests/interop/test_sidecar_hosts.py",
    "tests/interop/test_nameserver.py",
    "tests/interop/test_official_clients.py",
)
"""Files that take longer than half a minute and begin first after those with dear fixtures, so that no worker is left alone with one of
them at the end."""
ALONE = "alone"
"""Key of `workerinput`: whether the machine was idle when the run began."""
_YIELDS = pytest.StashKey[bool]()
_REQUESTED = re.compile(rf"(?:[(,]\s*|usefixtures\(\")({'|'.join(DEAR)})\b\"?\s*[:,)]")
"""A parameter of a test or of a fixture, or a mark."""


@functools.cache
def dear_to(file: Path) -> str | None:
    """The dear fixture that a file's tests, or fixtures of its folder, ask for."""
    for each in (file, file.with_name("conftest.py")):
        if each.exists() and (found := _REQUESTED.search(each.read_text(encoding="utf-8"))):
            return found[1]
    return None


class BySharing(LoadScopeScheduling):
    """Hands out files, in the order in which they were collected, to workers that may have what they ask for."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._having: dict[str, set[WorkerController]] = defaultdict(set)

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        for file in self.workqueue:
            dear = dear_to(self._root / file)
            if dear is None or self._may_have(node, dear):
                self.workqueue.move_to_end(file, last=False)
                super()._assign_work_unit(node)
                return
        node.shutdown()  # those that have it take the rest

    def _may_have(self, node: WorkerController, dear: str) -> bool:
        having = self._having[dear]
        having.intersection_update(self.nodes)  # a worker that crashed has nothing any more
        if node not in having and len(having) == DEAR[dear]:
            return False
        having.add(node)
        return True


@functools.cache
def alone() -> bool:
    """Whether the processors are idle now, by looks during half a second."""
    if FACTOR != 1:
        return False
    looks = []
    for _ in range(10):
        time.sleep(0.05)
        looks.append(runnable())
    return statistics.fmean(looks) < 1


def yield_to_dear_files(item: pytest.Item) -> None:
    """Called before each test. A worker whose first file asks for nothing dear takes the processors that others leave from then on:
    those with the dear fixtures, which nobody can help them with, would end minutes later. Beside busy processes, which would get
    the processors, it does not (`workerinput[ALONE]`)."""
    stash = item.config.stash
    if _YIELDS not in stash and getattr(item.config, "workerinput", {}).get(ALONE):
        stash[_YIELDS] = dear_to(item.path) is None
        if stash[_YIELDS]:
            os.nice(5)


def in_order(items: list[pytest.Item]) -> None:
    """Sorts tests by file, the longest first; else as they were."""
    rank = {name: at for at, name in enumerate((*DEAR, *LONGEST))}

    def place(item: pytest.Item) -> int:
        return rank.get(dear_to(item.path) or item.nodeid.partition("::")[0], len(rank))

    items.sort(key=place)
