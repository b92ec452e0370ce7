"""A lake and the store that it is made of. An engine costs half a second, most of it for the extension `delta`: what leaves nothing
behind asks `standing`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from lakebroker_testing.logs import LogWriter
from structured_streaming.embedded.engine import EmbeddedEngine
from structured_streaming.embedded.limits import Limits
from tests.support.lakes.asked import Opened
from tests.support.lakes.empty import empty_lake
from tests.support.lakes.union import commit, cuts, manifest


def written(folder: Path) -> Path:
    with LogWriter(folder) as writer:
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
def store(tmp_path: Path) -> Path:
    return written(tmp_path / "store")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return empty_lake(str(tmp_path / "lake")).path


class Standing(NamedTuple):
    """A lake of three batches, which nobody writes to, and an engine over it."""

    lake: Path
    engine: EmbeddedEngine


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    folder = tmp_path_factory.mktemp("standing")
    lake, store = empty_lake(str(folder / "lake")).path, written(folder / "store")
    for start, end in itertools.pairwise(cuts(store, 3)):
        commit(lake, manifest(lake, store, start, end))
    with EmbeddedEngine.open(str(lake), limits=Limits(seconds=600)) as engine:
        yield Standing(lake, engine)


@pytest.fixture
def standing_lake(shared: Standing) -> Path:
    return shared.lake


@pytest.fixture
def standing(shared: Standing) -> EmbeddedEngine:
    """One engine for all statements that leave nothing behind."""
    return shared.engine


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
