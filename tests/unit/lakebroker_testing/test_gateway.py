"""A gateway's process that cannot be started as a test asks."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from lakebroker_testing.gateway import Gateway


def test_limits_are_refused_beside_a_wrapper(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="limits cannot be set through a wrapper: leave out one"):
        Gateway(tmp_path, wrapper=["nice"], limits={resource.RLIMIT_NOFILE: (64, 64)})
