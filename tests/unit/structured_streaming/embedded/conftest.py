"""A lake and the store that it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lakebroker_testing.logs import LogWriter
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from structured_streaming.lake import create_tables

Opened = Callable[..., EmbeddedEngine]
WAIT_S = 120.0
"""For what happens soon on a machine that has nothing else to do."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with LogWriter(tmp_path / "store") as writer:
        writer.messages(40)
        for n in range(8):
            writer.journal_record(n)
        writer.raw(b"no record at all".ljust(500, b"?"))
        writer.messages(40)
        for n in range(8, 16):
            writer.journal_record(n)
        writer.raw(b"nor is this one".ljust(500, b"?"))
        return writer.folder


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return create_tables(str(tmp_path / "lake")).path


@pytest.fixture(scope="module")
def standing_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty one, which nobody writes to."""
    return create_tables(str(tmp_path_factory.mktemp("standing") / "lake")).path


@pytest.fixture(scope="module")
def standing(standing_lake: Path) -> Iterator[EmbeddedEngine]:
    """One engine for all statements of a file that leave nothing behind."""
    with EmbeddedEngine.open(str(standing_lake), limits=Limits(seconds=60)) as engine:
        yield engine


@pytest.fixture
def opened(lake: Path) -> Iterator[Opened]:
    """Opens engines over the lake, which are closed at the end."""
    engines: list[EmbeddedEngine] = []

    def open_engine(**given: Any) -> EmbeddedEngine:
        engines.append(EmbeddedEngine.open(str(lake), **given))
        return engines[-1]

    yield open_engine
    for each in engines:
        each.close()
