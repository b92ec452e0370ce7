"""Spark for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from lakebroker_testing.logs import LogWriter as Writer  # noqa: F401
from structured_streaming.sql import delta_session
from tests.lake_checks import rows  # noqa: F401


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    yield session
    session.stop()
