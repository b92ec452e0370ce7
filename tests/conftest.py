"""Spark for tests, started by the first one of a worker that asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from structured_streaming.errors import JvmEndedError
from structured_streaming.interruptible import has_ended, jvm_of
from structured_streaming.jvm_output import output_end
from structured_streaming.sql import delta_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "data" / "spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = delta_session()
    jvm = jvm_of(session)
    yield session
    if has_ended(jvm):
        raise JvmEndedError(jvm.returncode, output_end())
    session.stop()
