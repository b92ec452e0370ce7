"""No test here has the machine lose its power: that nothing waits for the disk changes nothing, and was a third of what lakes took."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        patched.setattr(os, "fdatasync", lambda fd: None)
        yield
