"""What all tests share: the Spark session and the prestarted `lakebroker` of each worker, which the first test that asks for one
starts; the environment of JVMs; and the choice between `make test` and `make evidence`, where each process is a fresh Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from lakebroker_testing.prestarted import prestarted
from structured_streaming.errors import JvmEndedError
from structured_streaming.interruptible import has_ended, jvm_of
from structured_streaming.jvm_output import output_end
from structured_streaming.sql import delta_session
from tests.suite.evidence import EVIDENCE
from tests.support.spark.jvm import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    shared = ExitStack()
    shared.enter_context(environment())
    if not EVIDENCE:
        shared.enter_context(prestarted())
    config.add_cleanup(shared.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [] if EVIDENCE else [item for item in items if item.get_closest_marker("evidence")]
    config.hook.pytest_deselected(items=long)
    for item in long:
        items.remove(item)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    jvm = jvm_of(session)
    yield session
    if has_ended(jvm):
        raise JvmEndedError(jvm.returncode, output_end())
    session.stop()
