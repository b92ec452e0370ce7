"""Spark for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from structured_streaming.sql import delta_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    yield session
    session.stop()
