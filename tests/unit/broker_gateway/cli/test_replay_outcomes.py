"""The file of a replay's outcomes, where it cannot be written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import typer

from broker_gateway.cli.replay_outcomes import SENT, opened

ROW = {"queue": 0, "offset": 7, "message_id": "m", "topic": "t", "outcome": SENT, "new_message_id": "n"}


def test_an_outcome_that_cannot_be_written_ends_the_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "outcomes"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path, "g", resume=False, dry_run=False) as kept:
        kept.add(ROW)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, before[1]))
        try:
            with pytest.raises(typer.Exit):
                kept.add({**ROW, "offset": 8, "message_id": "later"})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = " ".join(capsys.readouterr().err.split())
    assert f"the outcome of later (sent) cannot be written to {path}: File too large" in told
    with opened(path, "g", resume=True, dry_run=False) as kept:
        assert kept.sent == {(0, 7, "m")}
        kept.add({**ROW, "offset": 8, "message_id": "later"})
    with opened(path, "g", resume=True, dry_run=True) as kept:
        assert kept.sent == {(0, 7, "m"), (0, 8, "later")}
