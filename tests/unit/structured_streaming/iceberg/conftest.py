"""A lake that has half of its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.lakes.maintained import ReputLake


@pytest.fixture(scope="module")
def half_filled(tmp_path_factory: pytest.TempPathFactory) -> ReputLake:
    """With half of what there is in its tables."""
    made = ReputLake(tmp_path_factory.mktemp("half-filled"), batch_bytes=40_000)
    made.fill(len(made.batches()) // 2)
    return made


@pytest.fixture
def lake(half_filled: ReputLake, tmp_path: Path) -> ReputLake:
    return half_filled.copied(tmp_path)
