"""What all tests share: the Spark session and the prestarted `lakebroker` of each worker, which the first test that asks for one
starts; the environment of JVMs; and the choice between `make test` and `make evidence`, where each process is a fresh Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
import structlog

from lakebroker_testing.prestarted import prestarted
from structured_streaming.errors import JvmEndedError
from structured_streaming.interruptible import has_ended, jvm_of
from structured_streaming.jvm_output import output_end
from structured_streaming.sql import delta_session
from tests.suite.evidence import EVIDENCE
from tests.support.spark.jvm import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DEAR = ("rocketmq", "spark")
"""Fixtures of a session that are made once for all workers: they take many seconds to start, and much memory."""
_LONGEST = (
    *_DEAR,
    "tests/interop/test_store_exchange.py",
    "tests/interop/test_scale_out.py",
    "tests/interop/test_catalogs.py",
    "tests/interop/test_object_store.py",
)
"""Groups that begin first, so that no worker is left alone with one of them at the end."""


def pytest_configure(config: pytest.Config) -> None:
    # what is logged before anything says how, as most unit tests do it: rich's traces take a third of a second each
    structlog.get_config()["processors"][-1].exception_formatter = structlog.dev.plain_traceback
    shared = ExitStack()
    shared.enter_context(environment())
    if not EVIDENCE:
        shared.enter_context(prestarted())
    config.add_cleanup(shared.close)


@pytest.hookimpl(tryfirst=True)  # before xdist, which reads the groups in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [] if EVIDENCE else [item for item in items if item.get_closest_marker("evidence")]
    config.hook.pytest_deselected(items=long)
    for item in long:
        items.remove(item)
    divide(items)


def divide(items: list[pytest.Item]) -> None:
    """Groups for the workers (`--dist loadgroup`): a file stays in one, and so do all files that share a fixture of `_DEAR`."""
    groups = {}
    for item in items:
        shared = [name for name in _DEAR if name in getattr(item, "fixturenames", ())]
        if shared or item.path not in groups:
            groups[item.path] = shared[0] if shared else str(item.path.relative_to(item.config.rootpath))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(groups[item.path]))
    rank = {name: at for at, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: rank.get(groups[item.path], len(rank)))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    jvm = jvm_of(session)
    yield session
    if has_ended(jvm):
        raise JvmEndedError(jvm.returncode, output_end())
    session.stop()
