"""Property tests have no deadline, since the first call of a compiled function compiles it, and the same examples in every run of
`make test`; `make evidence` draws new ones. No test here has the machine lose its power: that nothing waits for the disk changes
nothing, and four fifths of the time of a broker in a test were such waits."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.suite.evidence import EVIDENCE, rounds

settings.register_profile(
    "lakebroker",
    deadline=None,
    derandomize=not EVIDENCE,
    max_examples=rounds(40, 100),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lakebroker")


@pytest.fixture(scope="module", autouse=True)
def no_wait_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda fd: None)
        patched.setattr(os, "fdatasync", lambda fd: None)
        yield
