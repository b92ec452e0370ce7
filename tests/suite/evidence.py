"""Long tests have a short form, for `make test` and `make interop`, and a full one, for `make evidence`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

EVIDENCE = os.environ.get("LAKEBROKER_EVIDENCE") == "1"
"""Whether the long versions are asked for."""
LONG = pytest.mark.evidence
"""Marks a test, or one of its parameters, that `make evidence` alone has: a shorter one shows nearly the same."""
Case = TypeVar("Case")


def seeds(short: int, long: int) -> list[Any]:
    """Parameters of a test at random: so many seeds in short, so many in all."""
    return [*range(short), *(pytest.param(seed, marks=LONG) for seed in range(short, long))]


def rounds(short: int, long: int) -> int:
    """Examples, steps or rounds of one test."""
    return long if EVIDENCE else short


def sample(cases: Sequence[Case], every: int) -> Sequence[Case]:
    """All cases in long; in short the first and each so-many-th behind it, and the last."""
    return cases if EVIDENCE else [*cases[:-1:every], *cases[-1:]]
