"""Who commits a reput's rows."""

from __future__ import annotations

import pytest

from structured_streaming.destination import destination_of
from structured_streaming.reput_options import ReputOptions


@pytest.mark.parametrize(
    ("location", "sink", "by_spark"),
    [("./lake", "", False), ("./lake", "spark", True), ("a.b", "", True), ("s3://b/lake", "", False)],
)
def test_the_location_decides_who_commits(location: str, sink: str, by_spark: bool) -> None:
    assert destination_of(ReputOptions(location, sink=sink)).by_spark == by_spark
