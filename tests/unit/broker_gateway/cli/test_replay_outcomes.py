"""The file of a replay's outcomes, where it cannot be written."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import typer

from broker_gateway.cli.replay_outcomes import SENT, opened

ROW = {
    "dlq_queue_id": 0,
    "dlq_queue_offset": 7,
    "origin_message_id": "m",
    "topic": "t",
    "outcome": SENT,
    "new_message_id": "n",
}


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
                kept.add({**ROW, "dlq_queue_offset": 8, "origin_message_id": "later"})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    told = " ".join(capsys.readouterr().err.split())
    assert f"the outcome of later (sent) cannot be written to {path}: File too large" in told
    with opened(path, "g", resume=True, dry_run=False) as kept:
        assert kept.sent == {(0, 7, "m")}
        kept.add({**ROW, "dlq_queue_offset": 8, "origin_message_id": "later"})
    with opened(path, "g", resume=True, dry_run=True) as kept:
        assert kept.sent == {(0, 7, "m"), (0, 8, "later")}


def test_a_file_of_an_earlier_version_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "outcomes"
    path.write_text('{"group": "g", "queue": 0, "offset": 6, "message_id": "old", "outcome": "sent"}\n')
    with opened(path, "g", resume=True, dry_run=False) as kept:
        assert kept.sent == {(0, 6, "old")}
        kept.add(ROW)
    with opened(path, "g", resume=True, dry_run=True) as kept:
        assert kept.sent == {(0, 6, "old"), (0, 7, "m")}
    assert path.read_text().splitlines()[1].startswith('{"consumer_group": "g", "dlq_queue_id": 0, ')
