"""A lake, the embedded engine over it, and the engine served on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from tests.support.lakes.served import Served, made_lake, serve


@pytest.fixture(scope="package")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_lake(tmp_path_factory.mktemp("flight"))


@pytest.fixture(scope="package")
def engine(lake: Path) -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.open(str(lake), Limits(memory_bytes=256 << 20, seconds=0)) as engine:
        yield engine


@pytest.fixture(scope="package")
def served(engine: EmbeddedEngine) -> Iterator[Served]:
    with serve(engine) as served:
        yield served
