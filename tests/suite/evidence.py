"""What takes long runs short in `make test` and `make interop`, and long in `make evidence`."""

from __future__ import annotations

import os

import pytest

EVIDENCE = os.environ.get("LAKEBROKER_EVIDENCE") == "1"
"""Whether the long versions are asked for."""
LONG = pytest.mark.evidence
"""Marks a test, or one of its parameters, that `make evidence` alone has: a shorter one shows nearly the same."""
