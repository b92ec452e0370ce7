"""What all tests share: the Spark session of each worker, which its first test that asks for one starts; the environment of JVMs;
and the choice between `make test` and `make evidence`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from structured_streaming.errors import JvmEndedError
from structured_streaming.interruptible import has_ended, jvm_of
from structured_streaming.jvm_output import output_end
from structured_streaming.sql import delta_session
from tests.suite.evidence import EVIDENCE
from tests.support.spark.jvm import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    jvms = ExitStack()
    jvms.enter_context(environment())
    config.add_cleanup(jvms.close)


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
